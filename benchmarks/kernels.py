"""What each kernel of `rl_core.kernels` saves of a whole GRPO step, with all weights and with
adapters.

    python -m benchmarks.kernels [--rounds 5] [--prompts 3] [--threads 2] [--write]

SmolLM2-135M in bfloat16, 8 samples x 64 tokens per prompt. A step is rollout, reward and training.
In each round every kernel is off for one step, in an order drawn anew; before every fourth of them
all are on for one, and a step is compared with the mean of the two such steps around it. Off means
what torch, transformers or peft compute in the kernel's place. What is set when a process starts or
a model is loaded has a process of its own. A kernel that saves less than 3 % is not worth its
lines. `--write` puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import page

ROOT = Path(__file__).parents[1]
ALL_ON = "all on"
SPACING = 4
"""Steps with a kernel off between two with all on."""
OF_A_PROCESS = ("allocator", "single_rank")
"""Kernels that cannot be switched off later."""
Off = Callable[[ExitStack, Any], None]


def norms_off(stack: ExitStack, _side: Any) -> None:
    """As transformers writes an RMSNorm."""
    import torch

    from rl_core.kernels.rms_norm import RMSNorm

    def forward(norm: Any, states: Any) -> Any:
        wide = states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
        return norm.weight * wide.to(states.dtype)

    stack.enter_context(patch.object(RMSNorm, "forward", forward))


def gated_mlps_off(stack: ExitStack, _side: Any) -> None:
    """Autograd's backward pass of the plain formula."""
    from rl_core.kernels import adapted_mlp, gated_mlp

    stack.enter_context(patch.object(gated_mlp, "_is_plain", lambda *_: False))
    stack.enter_context(patch.object(adapted_mlp, "adapted_mlp", lambda *_: None))


def adapted_mlps_off(stack: ExitStack, _side: Any) -> None:
    """An MLP's layers one by one."""
    from rl_core.kernels import adapted_mlp

    stack.enter_context(patch.object(adapted_mlp, "adapted_mlp", lambda *_: None))


def adapted_linears_off(stack: ExitStack, _side: Any) -> None:
    """peft's layers, and MLPs of them."""
    from rl_core.kernels import adapted_linear, adapted_mlp

    for module in (adapted_linear, adapted_mlp):
        stack.enter_context(patch.object(module, "trained_parts", lambda *_: None))


def attention_off(stack: ExitStack, _side: Any) -> None:
    """torch's scaled_dot_product_attention."""
    from rl_core.models import packing

    stack.enter_context(patch.object(packing, "attends_in_bfloat16", lambda *_, **__: False))


def rectangles_off(stack: ExitStack, side: Any) -> None:
    """Prompts of siblings computed once each, which needs no rectangles."""
    stack.enter_context(patch.object(side.stack, "share_prompts", False))


def packed_products_off(stack: ExitStack, _side: Any) -> None:
    """Weights laid out for every product anew."""
    import torch

    from rl_core.kernels import packed_products

    whole = lambda _, weights: torch.cat(weights).detach()  # noqa: E731
    stack.enter_context(patch.object(packed_products.Product, "_packed", whole))
    stack.enter_context(patch.object(packed_products, "_linear", torch.nn.functional.linear))


def narrow_head_off(stack: ExitStack, _side: Any) -> None:
    """The head's products in float32."""
    from rl_core.kernels import float32_matmul
    from rl_core.models import causal_lm, chunked_log_probs

    for module in (float32_matmul, causal_lm, chunked_log_probs):
        stack.enter_context(patch.object(module, "multiplied_as_bfloat16", lambda _: nullcontext()))


WITH_ALL_WEIGHTS: dict[str, Off] = {
    "rms_norm": norms_off,
    "gated_mlp": gated_mlps_off,
    "bfloat16_attention": attention_off,
    "ragged_rows": rectangles_off,
    "packed_products": packed_products_off,
    "float32_matmul": narrow_head_off,
}
WITH_ADAPTERS: dict[str, Off] = {
    "adapted_linear": adapted_linears_off,
    "adapted_mlp": adapted_mlps_off,
}


class Worker:
    """A process that takes a step when told which kernel is off."""

    def __init__(self, settings: dict[str, Any], off: str | None = None) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.kernels",
            "--serve",
            json.dumps(settings | {"off": off}),
        ]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = os.environ | {
            "OMP_NUM_THREADS": str(settings["threads"]),
            "HF_HUB_OFFLINE": "1",
        }
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, **pipes)
        self._hear()

    def step(self, off: str) -> dict[str, Any]:
        """Returns: the step's figures."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{off}\n")
        self._process.stdin.flush()
        return self._hear()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended without an answer; what it said is above")
        return json.loads(line)


def serve(settings: dict[str, Any]) -> None:
    """Take a step for each line of standard input, which names what is off."""
    answers = os.dup(1)
    os.dup2(2, 1)
    from rl_core.kernels import keep_freed_memory, widen_products

    if settings["off"] != "allocator":
        keep_freed_memory()
    import torch
    import torch.distributed as dist

    from benchmarks import trl_ours
    from rl_core.train.sharding import single_rank

    widen_products()
    torch.set_num_threads(settings["threads"])
    meeting = dist.FileStore(tempfile.mkdtemp() + "/meeting", 1)
    dist.init_process_group("gloo", store=meeting, rank=0, world_size=1)
    info = trl_ours.RankInfo(0, 1, "cpu", settings["threads"])
    make = trl_ours.ItemMaker()
    rows = [json.loads(line)["row"] for line in Path(settings["prompts"]).read_text().splitlines()]
    items = [make(row, f"row {number}") for number, row in enumerate(rows)]
    with ExitStack() as stack:
        if settings["off"] == "single_rank":
            stack.enter_context(
                patch.object(single_rank, "add_gradients_in_place", lambda *_: None)
            )
        side = trl_ours.Side(trl_ours.recipe_of(settings), settings["model"], info, forced=True)
    gc.freeze()
    os.write(answers, b"{}\n")
    for line in sys.stdin:
        switch = (WITH_ALL_WEIGHTS | WITH_ADAPTERS).get(line.strip())
        with ExitStack() as stack:
            if switch is not None:
                switch(stack, side)
            figures = side.step(items, 0)
        os.write(answers, f"{json.dumps(figures)}\n".encode())


def saved_by(
    steps: list[tuple[str, dict[str, Any]]],
) -> dict[str, list[tuple[float, float, float]]]:
    """For each kernel, one entry per step without it: how much longer that took than the steps
    around it with all on, as a share of the wall clock and of processor time, and how many GB more
    it needed."""
    found = defaultdict(list)
    for place, (name, figures) in enumerate(steps):
        if name == ALL_ON:
            continue
        before = next(one for on, one in reversed(steps[:place]) if on == ALL_ON)
        after = next(one for on, one in steps[place:] if on == ALL_ON)
        plain = [statistics.mean((before["step"][clock], after["step"][clock])) for clock in (0, 1)]
        wall, cpu = (figures["step"][clock] / plain[clock] - 1 for clock in (0, 1))
        found[name].append((wall, cpu, (figures["peak_bytes"] - after["peak_bytes"]) / 1e9))
    return found


def measure(
    settings: dict[str, Any], names: list[str], rounds: int
) -> list[tuple[str, dict[str, Any]]]:
    """All steps in order, the last of which has all kernels on."""
    workers = {ALL_ON: Worker(settings)}
    workers |= {name: Worker(settings, name) for name in names if name in OF_A_PROCESS}
    order = random.Random(0)
    steps: list[tuple[str, dict[str, Any]]] = []

    def take(name: str) -> None:
        worker = workers.get(name, workers[ALL_ON])
        steps.append((name, worker.step(name)))
        print(f"  {name:20} {steps[-1][1]['step'][0]:6.2f} s", flush=True)

    try:
        for name in workers:  # the first step of a process gets its memory, and does not count
            take(name)
        steps.clear()
        for _ in range(rounds):
            for place, name in enumerate(order.sample(names, len(names))):
                if place % SPACING == 0:
                    take(ALL_ON)
                take(name)
        take(ALL_ON)
    finally:
        for worker in workers.values():
            worker.close()
    return steps


def main() -> None:
    """Measure both kinds of training and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for trained, lora, names in (
            ("all weights", False, [*OF_A_PROCESS, *WITH_ALL_WEIGHTS]),
            ("adapters", True, [*WITH_ADAPTERS]),
        ):
            print(trained, flush=True)
            steps = measure(settings_of(args, lora, Path(folder)), names, args.rounds)
            whole = statistics.median(
                figures["step"][0] for name, figures in steps if name == ALL_ON
            )
            rows.append([f"({trained}: a step with all on)", f"{whole:.2f} s", "", "", ""])
            for name, pairs in saved_by(steps).items():
                walls, cpus, more = zip(*pairs, strict=True)
                spread = f"{100 * min(walls):+.1f} to {100 * max(walls):+.1f}"
                medians = [f"{100 * statistics.median(shares):+.1f}" for shares in (walls, cpus)]
                rows.append(
                    [f"`{name}`", f"{medians[0]} %", spread, f"{medians[1]} %", f"{max(more):+.1f}"]
                )
    heads = [
        "without",
        "a step takes longer by",
        "from the least to the most",
        "processor time",
        "GB more",
    ]
    body = (
        f"`python -m benchmarks.kernels`: SmolLM2-135M in bfloat16, {args.prompts} prompts x 8 "
        f"samples x 64 tokens, medians of {args.rounds} pairs. "
        f"{page.machine()}\n\n{page.table(heads, rows)}"
    )
    print(f"\n{body}")
    if args.write:
        page.write_section("What each kernel saves: `make bench-kernels`", body)


def settings_of(args: argparse.Namespace, lora: bool, folder: Path) -> dict[str, Any]:
    """What a worker is told, as by `make bench-trl`."""
    from benchmarks import trl

    sizes = {"prompts": args.prompts, "samples": 8, "new_tokens": 64, "threads": args.threads}
    once = {
        "warm_up": 0,
        "steps": 1,
        "examples": 0,
        "free": False,
        "checkpointing": False,
        "overrides": [],
    }
    told = argparse.Namespace(**sizes, **once, lora=lora)
    return {**trl.settings_of(told, "bf16", 0, folder), "ranks": 1}


if __name__ == "__main__":
    main()
