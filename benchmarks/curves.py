"""Four algorithms on the recipe `text`, one after the other: sampled reward and held-out accuracy in one picture.

    python -m benchmarks.curves [--home FOLDER] [--algorithms grpo dapo rloo gspo] [OVERRIDE ...]

Each is `rl-train run text algorithm={name: ...}` with the same data, seed and number of steps; a run that is there
already is continued or read, never repeated. The numbers come from MLflow. Each takes some minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mlflow import MlflowClient

ALGORITHMS = ("grpo", "dapo", "rloo", "gspo")
STEPS = ("training.num_iterations=5", "training.steps_per_iteration=2", "evaluation.eval_every=1")
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "algorithm-curves.png"
SAMPLED, HELD_OUT = "reward_mean", "eval/accuracy"


@dataclass(frozen=True)
class Learnt:
    """One run, as MLflow has it: (step, value) pairs in order."""

    sampled: list[tuple[int, float]]
    held_out: list[tuple[int, float]]


def run_of(algorithm: str) -> str:
    """The recipe's name for an algorithm's run, by which MLflow knows it."""
    return f"curve-{algorithm.replace('_', '-')}"


def train(algorithm: str, home: Path, overrides: list[str]) -> None:
    """Run the recipe to its end. Raises: CalledProcessError when it fails."""
    chosen = [f"name={run_of(algorithm)}", f"algorithm={{name: {algorithm}}}", *STEPS, *overrides]
    environment = os.environ | {"RL_TRAIN_HOME": str(home)}
    subprocess.run([sys.executable, "-m", "flows.cli", "run", "text", *chosen], check=True, env=environment)


def learnt(algorithm: str, client: MlflowClient) -> Learnt:
    """The newest run of an algorithm. Raises: LookupError when MLflow has none."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    wanted = f"params.name = '{run_of(algorithm)}'"
    found = client.search_runs(experiments, wanted, order_by=["attributes.start_time DESC"], max_results=1)
    if not found:
        raise LookupError(f"MLflow has no run with {wanted}")
    run_id = found[0].info.run_id
    histories = [client.get_metric_history(run_id, name) for name in (SAMPLED, HELD_OUT)]
    return Learnt(*(sorted({point.step: point.value for point in history}.items()) for history in histories))


def draw(runs: dict[str, Learnt], path: Path) -> None:
    """Two panels, sampled and held out, a line for each algorithm."""
    figure = Figure(figsize=(11, 4.5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True)
    for name, run in runs.items():
        left.plot(*zip(*run.sampled, strict=True), label=name)
        right.plot(*zip(*run.held_out, strict=True), marker="o", label=name)
    for axes, title in ((left, "Sampled reward, mean of the step"), (right, "Held-out accuracy, greedy")):
        axes.set(title=title, xlabel="step", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Train what is missing, then print the first and last numbers and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".rl-train"))
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    args = parser.parse_args()
    home = args.home.resolve()
    for algorithm in args.algorithms:
        train(algorithm, home, args.overrides)
    uri = f"sqlite:///{home / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    runs = {algorithm: learnt(algorithm, client) for algorithm in args.algorithms}
    draw(runs, args.picture)
    print(f"{'algorithm':24}{'sampled, first -> last 4 steps':>34}{'held out, before -> after':>30}")
    for name, run in runs.items():
        first, last = (sum(value for _, value in part) / len(part) for part in (run.sampled[:4], run.sampled[-4:]))
        print(
            f"{name:24}{f'{first:.2f} -> {last:.2f}':>34}{f'{run.held_out[0][1]:.2f} -> {run.held_out[-1][1]:.2f}':>30}"
        )
    print(f"picture: {args.picture}")


if __name__ == "__main__":
    main()
