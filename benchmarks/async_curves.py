"""Learning curves of the recipe `text` in turns, with rollouts ahead, and with weights in flight.

    python -m benchmarks.async_curves [--seeds 0 1 2] [--home FOLDER] [--write] [OVERRIDE ...]

Each run is `rl-train run text OVERRIDE ...` with one device that trains and one that samples, and
as many steps and samples; an existing run is continued or read, never repeated. Sampled rewards and
held-out scores are MLflow's. The table has the mean over the seeds, and the lowest and the highest.
A run takes two or three minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mlflow import MlflowClient

from benchmarks import page
from benchmarks.curves import IMAGES, Learnt, curves_of, run_recipe

TITLE = "What is learnt ahead"
PICTURE = IMAGES / "async-curves.png"
METRICS = ("reward_mean", "eval/accuracy")
LAST = 4
"""Steps at the end whose sampled reward is averaged."""
SHARED = (
    "placement={num_devices: 2, rollout_devices: 1, threads_per_device: 1}",
    "rollout.engine=dedicated",
    "algorithm.correction={level: token, upper: 2.0}",
    "training.num_iterations=3",
    "training.steps_per_iteration=8",
    "evaluation.eval_every=1",
)
WAYS = {
    "turns": (),
    "4 ahead": ("rollout.steps_ahead=4",),
    "4 ahead, in flight": ("rollout.steps_ahead=4", "rollout.in_flight=true"),
}


def name_of(way: str, seed: int) -> str:
    """Return the name of a run in MLflow."""
    return f"async-{way.replace(',', '').replace(' ', '-')}-{seed}"


def spread(values: Sequence[float]) -> str:
    """Return the mean, the lowest and the highest."""
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def line(way: str, runs: Sequence[Learnt], staleness: Sequence[float]) -> list[str]:
    """Return a row of the table."""
    sampled = []
    for run in runs:
        sampled.append(statistics.mean(value for _, value in run.sampled[-LAST:]))
    return [
        way,
        spread(sampled),
        spread([run.held_out[0][1] for run in runs]),
        spread([run.held_out[-1][1] for run in runs]),
        f"{statistics.mean(staleness):.2f}" if staleness else "0",
    ]


def draw(found: dict[str, list[Learnt]], path: Path) -> None:
    """Draw sampled and held-out curves: a line for the mean of the seeds, a band for their
    range."""
    figure = Figure(figsize=(11, 4.5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    for place, said in enumerate(("Sampled reward, mean of the step", "Held-out accuracy, greedy")):
        axes = figure.add_subplot(1, 2, place + 1)
        for way, runs in found.items():
            curves = [run.held_out if place else run.sampled for run in runs]
            steps = [step for step, _ in curves[0]]
            values = [[value for _, value in at] for at in zip(*curves, strict=True)]
            axes.plot(steps, [statistics.mean(one) for one in values], label=way)
            lowest, highest = [min(one) for one in values], [max(one) for one in values]
            axes.fill_between(steps, lowest, highest, alpha=0.15)
        axes.set(title=said, xlabel="step", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Train missing runs, print the table and draw the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=Path(".rl-train"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    args = parser.parse_args()
    home = args.home.resolve()
    uri = f"sqlite:///{home / 'mlflow.db'}"
    found: dict[str, list[Learnt]] = {way: [] for way in WAYS}
    ages: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in args.seeds:
        for way, own in WAYS.items():
            name = name_of(way, seed)
            run_recipe("text", name, [f"seed={seed}", *SHARED, *own, *args.overrides], home)
            client = MlflowClient(uri, uri)
            found[way].append(curves_of(name, METRICS, client))
            ages[way] += [age for _, age in curves_of(name, ("staleness_mean",), client).sampled]
    heads = ["way", f"sampled, last {LAST} steps", "held out, before", "after", "mean staleness"]
    table = page.table(heads, [line(way, found[way], ages[way]) for way in WAYS])
    body = (
        f"`make bench-async-curves`: recipe text, {len(args.seeds)} seeds, 24 steps on two devices "
        f"with a core each; mean, lowest and highest. {page.machine()}\n\n{table}"
    )
    print(body)
    draw(found, PICTURE)
    if args.write:
        page.write_section(TITLE, f"{body}\n\n![curves](images/{PICTURE.name})")


if __name__ == "__main__":
    main()
