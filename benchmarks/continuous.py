"""Rollouts of agents with slow tools, whose requests are gathered or answered one by one, in turn.

    python -m benchmarks.continuous [--rounds 3] [--write]

Two sums, and eight, are played eight times each, in three turns of up to 32 tokens (SmolLM2-135M).
A tool between them takes two seconds on average, by an exponential distribution, so that one of 64
takes eight.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import page
from benchmarks.mismatch import MODEL, backend_of
from benchmarks.seam import NEW_TOKENS, PROMPTS, SAMPLES, rows
from benchmarks.slow_tools import MEAN_S, TURNS
from rl_core.models.locate import locate
from rl_core.rollout.engine import RolloutEngine
from rl_core.runtime.home import Home
from schemas.recipe import DType
from schemas.sections.rollout import RolloutConfig

NAME = "slow_tools"
SIZES = (2, PROMPTS)
OPTIONS: dict[str, dict[str, Any]] = {
    NAME: {"agent": "benchmarks.slow_tools:play", "concurrency": PROMPTS * SAMPLES}
}
KINDS: Mapping[str, dict[str, Any]] = {
    "gathered (`patience_s: 1`)": {},
    "gathered (`patience_s: 60`)": {"patience_s": 60.0},
    "`continuous`": {"continuous": True},
}


def main() -> None:
    """Sample in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table on docs/agents.md")
    args = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    backend = backend_of(locate(MODEL, Home.default().models), DType.BFLOAT16, True, False)
    engines, found = {}, dict[tuple[int, str], list[tuple[float, int]]]()
    for name, episodes in KINDS.items():
        config = {"samples_per_prompt": SAMPLES, "max_new_tokens": NEW_TOKENS}
        settings = RolloutConfig.model_validate(config | {"episodes": episodes})
        engines[name] = RolloutEngine(backend, settings, OPTIONS, {}, 0)
    try:
        for seed in range(args.rounds + 1):
            # Whoever goes first may meet another speed of the machine.
            for prompts, name in product(SIZES, list(engines) if seed % 2 else reversed(engines)):
                if seed or prompts == SIZES[0]:
                    measured = rollout(engines[name], prompts, seed)
                if seed:  # the first imports the agent, and warms all
                    found.setdefault((prompts, name), []).append(measured)
    finally:
        for engine in engines.values():
            engine.agents.close()
        dist.destroy_process_group()
    text = told(found)
    print(text)
    if args.write:
        page.write_section("What slow tools cost", text, page.PAGE.parent / "agents.md")


def rollout(engine: RolloutEngine, prompts: int, seed: int) -> tuple[float, int]:
    """Sample once. Returns: seconds, sampled tokens."""
    some = rows(NAME)[:prompts]
    start_s = time.perf_counter()
    batch = engine.rollout(some, seed)
    seconds = time.perf_counter() - start_s
    assert batch is not None and not batch.tensor("failed").any()
    return seconds, int(batch.tensor("response_mask").sum())


def told(found: Mapping[tuple[int, str], list[tuple[float, int]]]) -> str:
    """Return the table and what it is of."""
    lines = []
    for (prompts, name), measured in found.items():
        seconds, tokens = zip(*measured, strict=True)
        rate = statistics.median(count / spent for spent, count in measured)
        lines.append(
            [
                f"{prompts * SAMPLES}",
                name,
                f"{min(seconds):.1f}",
                f"{statistics.median(seconds):.1f}",
                f"{statistics.mean(tokens):.0f}",
                f"{rate:.0f}",
            ]
        )
    heads = ["episodes", "requests", "best s", "median s", "sampled tokens", "tokens a second"]
    rounds = len(next(iter(found.values())))
    sizes = " and ".join(map(str, SIZES))
    return (
        f"`make bench-continuous` plays {sizes} prompts {SAMPLES} times each, in {TURNS} turns of "
        f"up to {NEW_TOKENS} tokens (SmolLM2-135M, bfloat16, adapters), with a tool between "
        f"them that takes {MEAN_S:g} s on average, exponentially distributed; {rounds} rounds in "
        f"turn, {torch.get_num_threads()} thread(s). {page.machine()}\n\n{page.table(heads, lines)}"
    )


if __name__ == "__main__":
    main()
