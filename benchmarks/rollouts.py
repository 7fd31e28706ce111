"""`make bench-rollouts`: the cost of keeping every rollout.

The same steps are trained with `tracking.rollouts: none` and `all` in turn. CPU seconds, user and
system, are of the driver and of every process below it, from the first rollout until the iteration
is complete with its checkpoint and the files of its steps. A busy machine makes each of them
larger, so the two orders take turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from benchmarks.page import machine, table, write_section

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("none", "all")
WATCHED = """
import psutil
from rl_core.trainers.progress import listeners
from schemas.receipts import IterationReceipt

def spent():
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            pass
    return total

before = []

def follow(event):
    if event.phase == "rollout" and not before:
        before.append(spent())
    if isinstance(event.receipt, IterationReceipt):
        print("spent", spent() - before[0], flush=True)

listeners.append(follow)
from flows.cli import main
main()
"""
"""Program that runs the command `rl-train` and prints the CPU seconds of its iteration."""


def main() -> None:
    """Measure and print; with --write also put the result into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="text")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--home", type=Path, help="with models there already; unset: .rl-train")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    models = (options.home or ROOT / ".rl-train").resolve() / "models"
    pairs, kept_bytes = [], 0
    for number in range(options.pairs):
        order = KEPT if number % 2 == 0 else KEPT[::-1]
        found = {kept: spent_s(options.recipe, options.steps, kept, models) for kept in order}
        pairs.append({kept: seconds for kept, (seconds, _) in found.items()})
        kept_bytes = found["all"][1]
        print(pairs[-1], flush=True)
    body = report(options.recipe, options.steps, pairs, kept_bytes)
    print(body)
    if options.write:
        write_section("Stored rollouts: `make bench-rollouts`", body)


def spent_s(recipe: str, num_steps: int, kept: str, models: Path) -> tuple[float, int]:
    """Train one iteration in a home of its own. Returns: its CPU seconds, and the bytes of its
    rollouts."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        models.mkdir(parents=True, exist_ok=True)
        (home / "models").symlink_to(models)
        arguments = [
            *("run", recipe, f"tracking.rollouts={kept}", "evaluation.max_new_tokens=2"),
            *("training.num_iterations=1", f"training.steps_per_iteration={num_steps}"),
        ]
        ran = subprocess.run(
            [sys.executable, "-c", WATCHED, *arguments],
            cwd=ROOT,
            env=os.environ | {"RL_TRAIN_HOME": str(home)},
            capture_output=True,
            text=True,
        )
        said = [line for line in ran.stdout.splitlines() if line.startswith("spent ")]
        if ran.returncode or len(said) != 1:
            raise SystemExit(f"the run ended with code {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        files = home.glob("runs/*/rollouts/*.parquet")
        return float(said[0].split()[1]), sum(one.stat().st_size for one in files)


def report(recipe: str, num_steps: int, pairs: list[dict[str, float]], kept_bytes: int) -> str:
    """Return the result as Markdown."""
    means = {kept: fmean(one[kept] for one in pairs) for kept in KEPT}
    shown = [*((str(number), one) for number, one in enumerate(pairs, start=1)), ("mean", means)]
    rows = [
        [name, *(f"{one[kept]:.1f}" for kept in KEPT), f"{one['all'] / one['none'] - 1:+.1%}"]
        for name, one in shown
    ]
    about = (
        f"CPU seconds of {num_steps} steps of the recipe {recipe} and their checkpoint, over all "
        f"processes; `all` kept {kept_bytes / 1000:.0f} kB. {machine()}"
    )
    heads = ["pair", *(f"`tracking.rollouts: {kept}`" for kept in KEPT), "difference"]
    return f"{about}\n\n{table(heads, rows)}\n"


if __name__ == "__main__":
    main()
