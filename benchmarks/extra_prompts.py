"""Rollouts with and without prompts beyond those of a step: `rollout.extra_prompts`.

    python -m benchmarks.extra_prompts [--new-tokens 256] [--rounds 3] [--write]

SmolLM2-135M answers eight questions, some of which ask for a word and some for a story, four times
each, with no, two and four more questions of the same kinds beside them. Most groups have ended
long before the last. The settings take turns in every round. The mean length of what is kept shows
the price: short replies are kept more often.
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
from rl_core.data_proto import DataProto
from rl_core.models.locate import locate
from rl_core.rollout.engine import RolloutEngine
from rl_core.runtime.home import Home
from rl_core.trainers.metrics.describe import describe_replies
from rl_core.trainers.track import prompt_batch
from schemas.recipe import DType
from schemas.sections.rollout import RolloutConfig

QUESTIONS = (
    "What is {0} + 4? Answer with the number alone.",
    "Is {0} even? Say yes or no.",
    "Name {0} fruits, nothing else.",
    "Write a long story about {0} cats.",
)
PROMPTS, SAMPLES = 8, 4
EXTRA = (0, 2, 4)


def prompts(count: int, step: int) -> DataProto:
    """Return questions of all kinds in turn."""
    items: list[Any] = []
    for number in range(count):
        question = QUESTIONS[number % len(QUESTIONS)].format(2 + step + number)
        items.append(
            {
                "uid": f"{step}-{number}",
                "prompt": [{"role": "user", "content": question}],
                "env_class": "exact_match",
                "env_extras": {"reward_spec": {"ground_truth": "yes"}},
            }
        )
    return prompt_batch(items)


def main() -> None:
    """Sample in turn, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    backend = backend_of(locate(MODEL, Home.default().models), DType.BFLOAT16, True, False)
    engines = {}
    for extra in EXTRA:
        config = RolloutConfig(
            samples_per_prompt=SAMPLES, max_new_tokens=args.new_tokens, extra_prompts=extra
        )
        engines[extra] = RolloutEngine(backend, config, {}, {}, 0)
    found: dict[int, list[tuple[float, dict[str, float]]]] = {extra: [] for extra in EXTRA}
    for step in range(args.rounds + 1):
        for extra, engine in engines.items():
            began = time.perf_counter()
            batch: Any = engine.rollout(prompts(PROMPTS + extra, step), step)
            seconds = time.perf_counter() - began
            assert len(batch) == PROMPTS * SAMPLES
            if step:  # the first round warms
                found[extra].append((seconds, describe_replies(batch, {})))
    dist.destroy_process_group()
    rows = [row(extra, found) for extra in EXTRA]
    heads = [
        "extra prompts",
        "s",
        "steps of decoding",
        "kept tokens",
        "given up",
        "mean length kept",
    ]
    text = (
        f"`make bench-extra-prompts`: {PROMPTS} groups of {SAMPLES} replies of up to "
        f"{args.new_tokens} tokens, of SmolLM2-135M with adapters in bfloat16; medians of "
        f"{args.rounds} rounds, {torch.get_num_threads()} thread(s). {page.machine()}\n\n"
        f"{page.table(heads, rows)}\n\nOn a CPU a rollout takes as long as its tokens, on a GPU "
        "(not run) about as long as its steps. Neither falls where more groups than the extra ones "
        "have a reply at the limit."
    )
    print(text)
    if args.write:
        page.write_section("Prompts beyond those of a step", text)


def row(extra: int, found: dict[int, list[tuple[float, dict[str, float]]]]) -> list[str]:
    """Return a line of the table."""

    def median(name: str, of: int = extra) -> float:
        return statistics.median(metrics.get(name, 0.0) for _, metrics in found[of])

    length = median("response_length_mean")
    return [
        str(extra),
        f"{statistics.median(seconds for seconds, _ in found[extra]):.2f}",
        f"{median('response_length_max'):.0f}",
        f"{length * PROMPTS * SAMPLES:.0f}",
        f"{median('given_up_tokens'):.0f}",
        f"{length:.0f}",
    ]


if __name__ == "__main__":
    main()
