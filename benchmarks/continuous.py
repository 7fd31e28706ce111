"""Rollouts of agents whose requests are gathered or answered one by one, in turn.

    python -m benchmarks.continuous [--rounds 3] [--write]

Two sums are played eight times each by `benchmarks.uneven_turns` with SmolLM2-135M: where requests
are gathered, a turn takes as long as its longest reply.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import page
from benchmarks.mismatch import MODEL, backend_of
from benchmarks.seam import SAMPLES, rows
from benchmarks.uneven_turns import LONG, LONG_SHARE, MEAN_S, SHORT, TURNS
from rl_core.models.locate import locate
from rl_core.rollout.engine import RolloutEngine
from rl_core.runtime.home import Home
from schemas.recipe import DType
from schemas.sections.rollout import RolloutConfig

NAME, PROMPTS = "uneven_turns", 2
OPTIONS: dict[str, dict[str, Any]] = {
    NAME: {"agent": "benchmarks.uneven_turns:play", "concurrency": PROMPTS * SAMPLES}
}
KINDS: Mapping[str, dict[str, Any]] = {
    "gathered (`patience_s: 1`)": {},
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
    engines, found = {}, {name: list[tuple[float, int]]() for name in KINDS}
    for name, episodes in KINDS.items():
        config = {"samples_per_prompt": SAMPLES, "max_new_tokens": LONG}
        settings = RolloutConfig.model_validate(config | {"episodes": episodes})
        engines[name] = RolloutEngine(backend, settings, OPTIONS, {}, 0)
    try:
        for seed in range(args.rounds + 1):
            # Whoever goes first may meet another speed of the machine.
            for name in list(engines) if seed % 2 else reversed(engines):
                measured = rollout(engines[name], seed)
                if seed:  # the first imports the agent, and warms all
                    found[name].append(measured)
    finally:
        for engine in engines.values():
            engine.agents.close()
        dist.destroy_process_group()
    text = told(found)
    print(text)
    if args.write:
        page.write_section("What uneven turns cost", text, page.PAGE.parent / "agents.md")


def rollout(engine: RolloutEngine, seed: int) -> tuple[float, int]:
    """Sample once. Returns: seconds, sampled tokens."""
    some = rows(NAME)[:PROMPTS]
    start_s = time.perf_counter()
    batch = engine.rollout(some, seed)
    seconds = time.perf_counter() - start_s
    assert batch is not None and not batch.tensor("failed").any()
    return seconds, int(batch.tensor("response_mask").sum())


def told(found: Mapping[str, list[tuple[float, int]]]) -> str:
    """Return the table and what it is of."""
    lines = []
    for name, measured in found.items():
        seconds, tokens = zip(*measured, strict=True)
        rate = statistics.median(count / spent for spent, count in measured)
        lines.append(
            [
                name,
                f"{min(seconds):.1f}",
                f"{statistics.median(seconds):.1f}",
                f"{statistics.mean(tokens):.0f}",
                f"{rate:.0f}",
            ]
        )
    heads = ["requests", "best s", "median s", "sampled tokens", "tokens a second"]
    rounds = len(next(iter(found.values())))
    return (
        f"`make bench-continuous` plays {PROMPTS} prompts {SAMPLES} times each, in {TURNS} turns "
        f"of up to {SHORT} tokens, or {LONG} with a probability of {LONG_SHARE:g} (SmolLM2-135M, "
        f"bfloat16, adapters), with a tool between them that takes {MEAN_S:g} s on average; "
        f"{rounds} rounds in turn, {torch.get_num_threads()} thread(s). {page.machine()}\n\n"
        f"{page.table(heads, lines)}"
    )


if __name__ == "__main__":
    main()
