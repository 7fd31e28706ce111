"""`make bench-overhead`: the overhead of a run.

It compares Prefect, MLflow, the checkpoint and Ray's work between phases with the rollouts and
training steps of the same iterations, and measures the time from the command to the first rollout,
with and without prepared data, and of the commands that only print something.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.page import machine, table, write_section
from flows.exit_codes import ExitCode

ROOT = Path(__file__).resolve().parents[1]
PHASE = "seconds/"
FIRST = "evaluate"
"""Phase with the first rollouts, those of the baseline evaluation."""
WATCHED = """
import time
from rl_core.trainers.progress import listeners
listeners.append(lambda event: print("phase", event.phase, time.time(), flush=True))
from flows.cli import main
main()
"""
"""Program that runs the command `rl-train` and prints the beginning of each phase."""
ANSWERS = {
    "rl-train --help": ["--help"],
    "rl-train run text --dry-run": ["run", "text", "--dry-run"],
}


@dataclass(frozen=True)
class Iteration:
    """Seconds of an iteration, from the end of the previous one, and of its steps' phases."""

    wall_s: float
    work_s: float

    @property
    def rest_s(self) -> float:
        return self.wall_s - self.work_s


def main() -> None:
    """Measure and print; with --write also put the results into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="text")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument(
        "--home", type=Path, help="with models that are there already; unset: .rl-train"
    )
    parser.add_argument(
        "--write", action="store_true", help="write the section of docs/benchmarks.md"
    )
    options = parser.parse_args()
    begun, iterations = train(
        options.recipe, options.iterations, (options.home or ROOT / ".rl-train").resolve()
    )
    body = report(options.recipe, begun, iterations)
    print(body)
    if options.write:
        write_section("Overheads: `make bench-overhead`", body)


def train(
    recipe: str, num_iterations: int, home: Path
) -> tuple[list[dict[str, float]], list[Iteration]]:
    """Run a recipe twice with models and databases in place: first to the first rollout, then
    completely with prepared data.

    Returns: for both runs, seconds from the command to the beginning of each phase, by name; the
    iterations of the second.
    """
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        (home / "models").mkdir(parents=True, exist_ok=True)
        (fresh / "models").symlink_to(home / "models")
        run_watched(["smoke/text", "training.num_iterations=1"], fresh)
        arguments = [recipe, f"training.num_iterations={num_iterations}"]
        begun = []
        for until in (FIRST, None):
            for run in fresh.glob("runs/*"):
                shutil.rmtree(run)
            begun.append(run_watched(arguments, fresh, until))
        (run,) = fresh.glob("runs/*")
        return begun, list(iterations_of(run))


def run_watched(arguments: list[str], home: Path, until: str | None = None) -> dict[str, float]:
    """Run `rl-train run` to its end, or interrupt it in phase `until`. Returns: seconds to the
    first beginning of each phase."""
    environment = os.environ | {"RL_TRAIN_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    seen: list[str] = []
    begun: dict[str, float] = {}
    before = time.time()
    command = [sys.executable, "-c", WATCHED, "run", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seen.append(line)
            if line.startswith("phase "):
                _, *words, at = line.split()
                phase = " ".join(words)
                if phase == until and phase not in begun:
                    process.send_signal(signal.SIGINT)
                begun.setdefault(phase, float(at) - before)
    if FIRST not in begun or process.returncode != (ExitCode.INTERRUPTED if until else 0):
        raise SystemExit(f"the run ended with code {process.returncode}:\n{''.join(seen)}")
    return begun


def iterations_of(run: Path) -> Iterator[Iteration]:
    """Return all iterations but the first, whose beginning is not recorded."""
    receipts = sorted((run / "receipts").glob("iteration-*.json"))
    for before, receipt in pairwise(receipts):
        steps = []
        for line in (run / "steps" / f"{receipt.stem}.jsonl").read_text().splitlines():
            steps.append(json.loads(line))
        work_s = sum(
            value for step in steps for name, value in step.items() if name.startswith(PHASE)
        )
        yield Iteration(receipt.stat().st_mtime - before.stat().st_mtime, work_s)


def answer_s(arguments: list[str]) -> float:
    """Return the median seconds of five runs of a command, each in its own process."""
    took = []
    for _ in range(5):
        before = time.perf_counter()
        command = [sys.executable, "-m", "flows.cli", *arguments]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - before)
    return statistics.median(took)


def report(recipe: str, begun: list[dict[str, float]], iterations: list[Iteration]) -> str:
    """Return the results as Markdown."""
    rows = []
    for number, one in enumerate(iterations, start=2):
        rows.append(
            [
                str(number),
                *(f"{value:.2f}" for value in (one.wall_s, one.work_s, one.rest_s)),
                f"{one.rest_s / one.wall_s:.1%}",
            ]
        )
    heads = ["iteration", "wall s", "rollout and training s", "the rest s", "share of the rest"]
    unprepared, prepared = begun
    waits = [
        [f"rl-train run {recipe} until its workers start", f"{prepared['start workers']:.1f}"],
        [f"rl-train run {recipe} to the first rollout", f"{prepared[FIRST]:.1f}"],
        ["the same, its data prepared on the way", f"{unprepared[FIRST]:.1f}"],
    ]
    waits += [[name, f"{answer_s(arguments):.2f}"] for name, arguments in ANSWERS.items()]
    about = (
        f"Recipe {recipe}; the rest is Prefect, MLflow, the checkpoint and what Ray does between "
        "the phases."
    )
    return f"{about} {machine()}\n\n{table(heads, rows)}\n\n{table(['wait', 'wall s'], waits)}\n"


if __name__ == "__main__":
    main()
