"""Savings of each kernel of `rl_core.kernels` in a whole GRPO step.

    python -m benchmarks.kernels [--rounds 5] [--prompts 3] [--threads 2] [--write]

SmolLM2-135M in bfloat16 with all weights and with adapters, 8 samples x 64 tokens per prompt; the
kernels are those of `rl_core.kernels` and what a single rank can leave out (`single_rank`). A step
is rollout, reward and training. In each round every kernel is off for one step, in random order;
before every fourth of these steps one has all kernels on, and a step is compared with the mean of
the two such steps around it. If a kernel is off, torch, transformers or peft compute in its place.
Kernels that are set when a process starts or a model is loaded have their own process. A kernel
that saves less than 3 % is not worth its lines. `--write` puts the table into docs/benchmarks.md.
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
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks import page
from benchmarks.page import JsonObject

if TYPE_CHECKING:
    from benchmarks.trl_ours import Side

ROOT = Path(__file__).parents[1]
ALL_ON = "all on"
SPACING = 4
"""Number of steps with a kernel off between two steps with all on."""
OF_A_PROCESS = ("allocator", "single_rank")
"""Kernels that are set when the process starts."""
Off = Callable[[ExitStack, "Side"], None]


def norms_off(stack: ExitStack, _side: Side) -> None:
    """Use RMSNorm as transformers writes it."""
    import torch

    from rl_core.kernels.rms_norm import RMSNorm

    def forward(norm: RMSNorm, states: torch.Tensor) -> torch.Tensor:
        wide = states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
        return norm.weight * wide.to(states.dtype)

    stack.enter_context(patch.object(RMSNorm, "forward", forward))


def gated_mlps_off(stack: ExitStack, _side: Side) -> None:
    """Use autograd's backward pass of the plain MLP formula."""
    from rl_core.kernels import gated_mlp

    stack.enter_context(patch.object(gated_mlp, "_is_plain", lambda *_: False))


def adapted_linears_off(stack: ExitStack, _side: Side) -> None:
    """Use peft's layers."""
    from peft.tuners import lora

    from rl_core.kernels import AdaptedLinear

    stack.enter_context(patch.object(AdaptedLinear, "forward", lora.Linear.forward))


def attention_off(stack: ExitStack, _side: Side) -> None:
    """Use torch's scaled_dot_product_attention."""
    from rl_core.models import packing

    stack.enter_context(patch.object(packing, "attends_in_bfloat16", lambda *_, **__: False))


def rectangles_off(stack: ExitStack, side: Side) -> None:
    """Turn prefix sharing off: the prompt is computed for every sibling, which needs no
    rectangles."""
    stack.enter_context(patch.object(side.stack, "share_prompts", False))


def packed_products_off(stack: ExitStack, _side: Side) -> None:
    """Rearrange the weights for every product."""
    import torch

    from rl_core.kernels import packed_products

    whole = lambda _, weights: torch.cat(weights).detach()  # noqa: E731
    stack.enter_context(patch.object(packed_products.Product, "_packed", whole))
    stack.enter_context(patch.object(packed_products, "_linear", torch.nn.functional.linear))


def narrow_head_off(stack: ExitStack, _side: Side) -> None:
    """Compute the head's products in float32."""
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
WITH_ADAPTERS: dict[str, Off] = {"adapted_linear": adapted_linears_off}


class Worker:
    """A process that takes a step when it is told which kernel is off."""

    def __init__(self, settings: JsonObject, off: str | None = None) -> None:
        command = [
            sys.executable,
            "-m",
            "benchmarks.kernels",
            "--serve",
            json.dumps(settings | {"off": off}),
        ]
        environment = os.environ | {
            "OMP_NUM_THREADS": str(settings["threads"]),
            "HF_HUB_OFFLINE": "1",
        }
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._hear()

    def step(self, off: str) -> float:
        """Take a step and return its seconds."""
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


def serve(settings: JsonObject) -> None:
    """Take a step for each line of standard input, which names the kernel that is off."""
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
    meeting = dist.FileStore(tempfile.mkdtemp() + "/meeting", 1)  # pyright: ignore[reportPrivateImportUsage]
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
        os.write(answers, f"{figures['step'][0]}\n".encode())


def saved_by(steps: list[tuple[str, float]]) -> dict[str, list[float]]:
    """Return the additional seconds of each step without a kernel, as a share, by kernel.

    Args: steps: the kernel that was off, and the step's seconds.
    """
    found = defaultdict(list)
    for place, (name, took_s) in enumerate(steps):
        if name == ALL_ON:
            continue
        before = next(one for on, one in reversed(steps[:place]) if on == ALL_ON)
        after = next(one for on, one in steps[place:] if on == ALL_ON)
        found[name].append(took_s / statistics.mean((before, after)) - 1)
    return found


def measure(settings: JsonObject, names: list[str], rounds: int) -> list[tuple[str, float]]:
    """Take all steps in order; the last one has all kernels on."""
    workers = {ALL_ON: Worker(settings)}
    workers |= {name: Worker(settings, name) for name in names if name in OF_A_PROCESS}
    order = random.Random(0)
    steps: list[tuple[str, float]] = []

    def take(name: str) -> None:
        worker = workers.get(name, workers[ALL_ON])
        steps.append((name, worker.step(name)))
        print(f"  {name:20} {steps[-1][1]:6.2f} s", flush=True)

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
            plain = [took_s for name, took_s in steps if name == ALL_ON]
            span = f"{min(plain):.2f} to {max(plain):.2f} s"
            rows.append(
                [f"({trained}: a step with all on)", f"{statistics.median(plain):.2f} s", span]
            )
            for name, shares in saved_by(steps).items():
                spread = f"{100 * min(shares):+.0f} to {100 * max(shares):+.0f} %"
                rows.append([f"`{name}`", f"{100 * statistics.median(shares):+.0f} %", spread])
    heads = ["without", "a step takes longer by", "from the least to the most"]
    body = (
        f"`python -m benchmarks.kernels`: SmolLM2-135M in bfloat16, "
        f"{args.prompts} prompts x 8 samples x 64 tokens, "
        f"medians of {args.rounds} pairs. {page.machine()}\n\n{page.table(heads, rows)}"
    )
    print(f"\n{body}")
    if args.write:
        page.write_section("What each kernel saves: `make bench-kernels`", body)


def settings_of(args: argparse.Namespace, lora: bool, folder: Path) -> JsonObject:
    """Return the settings of a worker, as in `make bench-trl`."""
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
