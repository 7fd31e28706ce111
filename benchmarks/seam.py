"""Cost of an agent beside the plain loop: the same rows of SmolLM2-135M, sampled both ways in turn.

    python -m benchmarks.seam [--rounds 9] [--write]

Eight sums get eight replies each of up to 32 tokens. Without an agent, the environment
`exact_match` reads the reply in this process. With one, `benchmarks.one_answer` asks for it over
HTTP, from a process of its own for each episode, and compares in the same way. What an agent costs
is paid per request, whatever the length of its reply.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import psutil
import torch
import torch.distributed as dist

from benchmarks import page
from benchmarks.mismatch import MODEL, backend_of
from rl_core.data_proto import DataProto
from rl_core.models.locate import locate
from rl_core.rollout.engine import RolloutEngine
from rl_core.runtime.home import Home
from rl_core.trainers.track import prompt_batch
from schemas.recipe import DType
from schemas.sections.rollout import RolloutConfig

PLAIN, AGENT = "exact_match", "one_answer"
OPTIONS: dict[str, dict[str, Any]] = {
    AGENT: {"agent": "benchmarks.one_answer:play", "concurrency": 64}
}
PROMPTS, SAMPLES, NEW_TOKENS = 8, 8, 32


def rows(env_class: str) -> DataProto:
    """Return the sums, played by an environment."""
    items = []
    for a in range(1, PROMPTS + 1):
        question = f"What is {a} + {a + 5}? Explain your answer."
        items.append(
            {
                "uid": f"sum-{a}",
                "prompt": [{"role": "user", "content": question}],
                "env_class": env_class,
                "env_extras": {"reward_spec": {"method": "rule", "ground_truth": str(2 * a + 5)}},
            }
        )
    return prompt_batch(items)


def rollout(engine: RolloutEngine, env_class: str, seed: int) -> tuple[float, float, int]:
    """Sample once. Returns: wall seconds, CPU seconds with those of agents, sampled tokens."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    batch = engine.rollout(rows(env_class), seed)
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    assert batch is not None and not batch.tensor("failed").any()
    return wall, cpu, int(batch.tensor("response_mask").sum())


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, of those that start agents, and of ended agents."""
    spent = time.process_time()
    for starter in psutil.Process().children():
        times = starter.cpu_times()
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def main() -> None:
    """Sample in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="put the table on docs/agents.md")
    args = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    source = locate(MODEL, Home.default().models)
    backend = backend_of(source, DType.BFLOAT16, True, False)
    config = RolloutConfig(samples_per_prompt=SAMPLES, max_new_tokens=NEW_TOKENS)
    engine = RolloutEngine(backend, config, OPTIONS, {}, 0)
    found: dict[str, list[tuple[float, float, int]]] = {PLAIN: [], AGENT: []}
    try:
        for name in found:
            rollout(engine, name, 0)  # imports the agent, and warms both
        for seed in range(1, args.rounds + 1):
            # Whoever goes first may meet another speed of the machine.
            order = list(found) if seed % 2 else list(reversed(found))
            for name in order:
                found[name].append(rollout(engine, name, seed))
    finally:
        engine.agents.close()
        dist.destroy_process_group()
    text = told(found)
    print(text)
    if args.write:
        page.write_section("What an agent costs", text, page.PAGE.parent / "agents.md")


def told(found: dict[str, list[tuple[float, float, int]]]) -> str:
    """Return the table and its conclusion."""
    lines = []
    for name, measured in found.items():
        walls, cpus, tokens = zip(*measured, strict=True)
        lines.append(
            [
                f"`{name}`",
                f"{min(walls):.2f}",
                f"{statistics.median(walls):.2f}",
                f"{statistics.median(cpus):.2f}",
                f"{statistics.mean(tokens):.0f}",
            ]
        )
    # Per token, since requests of agents have random numbers of their own; per round, since the
    # machine's speed changes from one to the next.
    wall_costs, cpu_costs = [], []
    for plain, agent in zip(found[PLAIN], found[AGENT], strict=True):
        wall_costs.append(agent[0] / agent[2] * plain[2] / plain[0] - 1)
        cpu_costs.append(agent[1] / agent[2] * plain[2] / plain[1] - 1)
    wall_cost, cpu_cost = statistics.median(wall_costs), statistics.median(cpu_costs)
    rounds, threads = len(found[PLAIN]), torch.get_num_threads()
    heads = ["rows played by", "best s", "median s", "median CPU s", "sampled tokens"]
    return (
        f"`make bench-seam` plays {PROMPTS} prompts with {SAMPLES} replies each of up to "
        f"{NEW_TOKENS} tokens (SmolLM2-135M, bfloat16, adapters) in turn without and with an "
        f"agent that asks once; {rounds} rounds, {threads} thread(s). {page.machine()}\n\n"
        f"{page.table(heads, lines)}\n\nPer sampled token an agent's rollout "
        "costs, by the median of rounds, "
        f"{wall_cost:+.1%} of time and {cpu_cost:+.1%} of CPU seconds, its processes included."
    )


if __name__ == "__main__":
    main()
