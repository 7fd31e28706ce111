"""`make bench-neighbours`: a step of the recipe `text` alone and beside busy processes, compared
with TRL's where it is installed.

    python -m benchmarks.neighbours [--busy 0 1 2] [--steps 3] [--warm-up 1] [--write]
        [key=value ...]

Each side keeps its process, which takes its steps by itself; then as many processes as are named
compute without end, and it takes as many again. `spinning` is rl-train with threads that never
sleep while they wait for each other (`rl_core/kernels/idle_threads.py`).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import page
from benchmarks.page import JsonObject
from benchmarks.random_models import MODEL
from benchmarks.trl import PEER, PHASES, ROOT, SETTINGS, Side, write_prompts
from rl_core.models.locate import locate
from rl_core.runtime.home import Home

SPINNING = "spinning"


def main() -> None:
    """Let every side take its steps, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="put it into docs/benchmarks.md")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as name:
        settings = settings_of(args, Path(name))
        ours = [sys.executable, "-m", "benchmarks.trl_ours"]
        sides = {"rl-train": ours, SPINNING: ours}
        if PEER.is_file():
            sides["TRL"] = [str(PEER), "-P", str(ROOT / "benchmarks" / "trl_peer.py")]
        for side, command in sides.items():
            lines += measured(
                side, command, settings | {"spinning": side == SPINNING}, args, Path(name)
            )
    body = (
        f"The recipe `text` (adapters of rank 16, 8 prompts x 8 samples x 16 tokens), medians of "
        f"{args.steps} steps after {args.warm_up}; {page.machine()}.\n\n"
        + page.table(["side", "busy processes beside it", *PHASES, "beside alone"], lines)
    )
    print(f"\n{body}")
    if args.write:
        page.write_section("Beside busy processes: `make bench-neighbours`", body)


def settings_of(args: argparse.Namespace, folder: Path) -> JsonObject:
    """Return the settings of all sides: the sizes of the recipe `text`."""
    num_steps = (args.steps + args.warm_up) * len(args.busy)
    return {
        **SETTINGS["bf16"],
        "model": locate(MODEL, Home.default().models),
        "prompts": str(write_prompts(folder, 8 * num_steps)),
        "num_prompts": 8,
        "samples": 8,
        "new_tokens": 16,
        "forced": True,
        "lora": {"r": 16, "lora_alpha": 32},
        "learning_rate": 1e-6,
        "checkpointing": False,
        "device": "cpu",
        "threads": 2,
        "seed": 0,
        "overrides": args.overrides,
    }


def measured(
    name: str, command: list[str], settings: JsonObject, args: argparse.Namespace, folder: Path
) -> list[list[str]]:
    """Return a line for each number of busy processes: the seconds of each phase, and the step's
    beside the first."""
    lines, alone = [], 0.0
    side = Side(name, command, settings, folder / f"{name}.log")
    try:
        side.wait()
        for num_busy in args.busy:
            with busy(num_busy):
                steps = [side.step() for _ in range(args.warm_up + args.steps)][args.warm_up :]
            took = [statistics.median(step[phase][0] for step in steps) for phase in PHASES]
            alone = alone or took[-1]
            cells = [f"{seconds:.2f} s" for seconds in took]
            lines.append([name, str(num_busy), *cells, f"{took[-1] / alone:.1f}"])
            print("  ".join(lines[-1]), flush=True)
    finally:
        side.close()
    return lines


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Let this many processes compute without end during the block."""
    with ExitStack() as stack:
        for _ in range(number):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


if __name__ == "__main__":
    main()
