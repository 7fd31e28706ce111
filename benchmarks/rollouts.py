"""`make bench-rollouts`: the cost of keeping every rollout of the recipe `text`.

After each training step its record is written as `tracking.rollouts: all` writes it; with `none`
nothing is written. CPU seconds, user and system, are of this process and of every process below
it. Both figures are of the same steps, so a busy machine makes both larger and their ratio says
what recording adds. In a run the files are written beside the next step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean

import psutil

from benchmarks.page import machine, table, write_section
from rl_core.builtin.data.reasoning_problems import GenerateSpec, materialise
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.distributed import ray_cluster
from rl_core.models.locate import locate
from rl_core.runs.recipes import load_recipe
from rl_core.runs.rollouts.recorder import RolloutRecorder
from rl_core.runs.run_folder import RunFolder
from rl_core.runtime.home import Home
from rl_core.trainers.domains.text import TextTrainer

Spent = tuple[float, float]
"""CPU seconds of a step, and of its record."""


def main() -> None:
    """Measure and print; with --write also put the result into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="after one that warms up")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("overrides", nargs="*", help="assignments to the recipe")
    options = parser.parse_args()
    with ray_cluster(None, 1, "cpu"), tempfile.TemporaryDirectory() as folder:
        spent, kept_bytes = measured(options.steps, options.overrides, Path(folder))
    body = report(spent, kept_bytes)
    print(body)
    if options.write:
        write_section("Stored rollouts: `make bench-rollouts`", body)


def measured(num_steps: int, overrides: list[str], folder: Path) -> tuple[list[Spent], float]:
    """Train, and record each step. Returns: what both took, and the bytes of a step's file."""
    length = [f"training.steps_per_iteration={num_steps + 1}", "training.num_iterations=1"]
    recipe = load_recipe("text", [*length, *overrides])
    make, spec = ItemMaker(), GenerateSpec.model_validate(recipe.data.train[0])
    rows = [json.loads(line) for line in materialise(spec, folder).read_text().splitlines()]
    items = [make(row, f"row {number}") for number, row in enumerate(rows)]
    trainer = TextTrainer(recipe, locate(recipe.model.path, Home.default().models), items)
    run = RunFolder(folder / "run")
    recorder = RolloutRecorder(recipe, run)
    spent = []
    try:
        trainer.build()
        for _ in range(num_steps + 1):
            begun = cpu_s()
            trainer.step()
            trained = cpu_s()
            recorder.put(trainer.record)
            recorder.flush()
            spent.append((trained - begun, cpu_s() - trained))
            print(spent[-1], flush=True)
    finally:
        trainer.close()
    sizes = [one.stat().st_size for one in run.rollouts.glob("*.parquet")]
    return spent[1:], fmean(sizes)


def cpu_s() -> float:
    """CPU seconds so far of this process and of those below it."""
    own = psutil.Process()
    times = [one.cpu_times() for one in [own, *own.children(recursive=True)]]
    return sum(one.user + one.system for one in times)


def report(spent: list[Spent], kept_bytes: float) -> str:
    """Return the result as Markdown."""
    mean = fmean(one for one, _ in spent), fmean(one for _, one in spent)
    shown = [*((str(number), one) for number, one in enumerate(spent, start=2)), ("mean", mean)]
    rows = [
        [name, f"{step:.2f}", f"{kept:.3f}", f"{kept / step:.1%}"] for name, (step, kept) in shown
    ]
    about = (
        "CPU seconds of a step of the recipe `text` (64 replies) and of writing its rollouts, a "
        f"file of {kept_bytes / 1000:.0f} kB, over all processes. {machine()}"
    )
    return f"{about}\n\n{table(['step', 'step s', 'rollouts s', 'share'], rows)}\n"


if __name__ == "__main__":
    main()
