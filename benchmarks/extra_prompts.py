"""Rollouts with and without prompts beyond those of a step: `rollout.extra_prompts`, whose
unfinished groups are given up, or go on in the next step (`rollout.carry_over`).

    python -m benchmarks.extra_prompts [--new-tokens 96] [--rounds 3] [--write]

SmolLM2-135M answers eight questions, some of which ask for a word and some for a story, four times
each, with no, two and four more questions of the same kinds beside them. Most groups have ended
long before the last. The settings take turns in every round. The mean length of what is kept shows
the price of giving up: short replies are kept more often.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import page
from benchmarks.mismatch import MODEL, backend_of
from rl_core.models.locate import locate
from rl_core.rollout.engine import RolloutEngine
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.home import Home
from rl_core.trainers.metrics.describe import describe_replies
from rl_core.trainers.step_prompts import StepPrompts, drawn_at_once
from schemas.recipe import DType

QUESTIONS = (
    "What is {0} + 4? Answer with the number alone.",
    "Is {0} even? Say yes or no.",
    "Name {0} fruits, nothing else.",
    "Write a long story about {0} cats.",
)
PROMPTS, SAMPLES, WARM_UP = 8, 4, 2
WAYS = {
    "none": (0, 0),
    "2, given up": (2, 0),
    "4, given up": (4, 0),
    "2, carried over": (2, 1),
    "4, carried over": (4, 1),
}
"""Extra prompts, and how often a group is carried over."""


class Questions:
    """Questions of all kinds in turn, a step's at once."""

    def __init__(self, count: int) -> None:
        self.count, self.given = count, 0

    def next_batch(self) -> list[Any]:
        """Return the next questions."""
        first, self.given = self.given, self.given + self.count
        return [question(number) for number in range(first, self.given)]

    def state_dict(self) -> dict[str, object]:
        """Return the position."""
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after a position."""
        self.given = state["given"]


def question(number: int) -> dict[str, Any]:
    """Return one question as a row."""
    text = QUESTIONS[number % len(QUESTIONS)].format(2 + number % 17)
    return {
        "uid": str(number),
        "prompt": [{"role": "user", "content": text}],
        "env_class": "exact_match",
        "env_extras": {"reward_spec": {"ground_truth": "yes"}},
    }


class CountedSteps:
    """Counts the steps of decoding of a policy."""

    def __init__(self, policy: Any) -> None:
        self.num_steps, self._logits = 0, policy.logits
        policy.logits = self

    def __call__(self, hidden: Any) -> Any:
        """Return the logits of a step."""
        self.num_steps += 1
        return self._logits(hidden)


class Way:
    """Rollouts of one setting, one after the other."""

    def __init__(
        self, backend: Any, count: CountedSteps, extra: int, times: int, new_tokens: int
    ) -> None:
        self.count = count
        overrides = [
            f"rollout.extra_prompts={extra}",
            f"rollout.carry_over={times}",
            f"rollout.max_new_tokens={new_tokens}",
            f"rollout.samples_per_prompt={SAMPLES}",
            f"training.prompts_per_step={PROMPTS}",
            "training.steps_per_iteration=1000",
            "algorithm.correction={level: token, upper: 2.0}",
        ]
        recipe = load_recipe("text", overrides)
        self.prompts = StepPrompts(recipe, Questions(drawn_at_once(recipe)))
        self.engine: Any = RolloutEngine(backend, recipe.rollout, {}, {}, 0)

    def rollout(self, step: int) -> tuple[float, dict[str, float]]:
        """Sample a step. Returns: seconds, and metrics."""
        prompts, before = self.prompts.next(step), self.count.num_steps
        began = time.perf_counter()
        batch = self.engine.rollout(prompts, step)
        seconds = time.perf_counter() - began
        assert len(batch) == PROMPTS * SAMPLES
        self.prompts.leave(prompts, self.engine.unfinished())
        num_steps = float(self.count.num_steps - before)
        return seconds, describe_replies(batch, {}) | {"decoded": num_steps}


def main() -> None:
    """Sample in turn, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    backend = backend_of(locate(MODEL, Home.default().models), DType.BFLOAT16, True, False)
    count = CountedSteps(backend.policy)
    ways = {}
    for name, (extra, times) in WAYS.items():
        ways[name] = Way(backend, count, extra, times, args.new_tokens)
    found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in WAYS}
    for step in range(args.rounds + WARM_UP):
        for name, way in ways.items():
            measured = way.rollout(step)
            if step >= WARM_UP:
                found[name].append(measured)
    dist.destroy_process_group()
    rows = [row(name, found[name]) for name in WAYS]
    heads = ["extra prompts", "s", "steps of decoding", "kept tokens", "given up", "mean length"]
    text = (
        f"`make bench-extra-prompts`: {PROMPTS} groups of {SAMPLES} replies of up to "
        f"{args.new_tokens} tokens, of SmolLM2-135M with adapters in bfloat16; means of "
        f"{args.rounds} rounds, {torch.get_num_threads()} thread(s). {page.machine()}\n\n"
        f"{page.table(heads, rows)}\n\nOn a CPU a rollout takes as long as its tokens, on a GPU "
        "(not run) about as long as its steps."
    )
    print(text)
    if args.write:
        page.write_section("Prompts beyond those of a step", text)


def row(name: str, found: list[tuple[float, dict[str, float]]]) -> list[str]:
    """Return a line of the table."""

    def mean(metric: str) -> float:
        return statistics.mean(metrics.get(metric, 0.0) for _, metrics in found)

    length = mean("response_length_mean")
    return [
        name,
        f"{statistics.mean(seconds for seconds, _ in found):.2f}",
        f"{mean('decoded'):.0f}",
        f"{length * PROMPTS * SAMPLES:.0f}",
        f"{mean('given_up_tokens'):.0f}",
        f"{length:.0f}",
    ]


if __name__ == "__main__":
    main()
