"""Comparison of several variants of one recipe: sampled reward and held-out score in one picture.

    python -m benchmarks.curves [--recipe NAME] [--home FOLDER] [--variants NAME ...] [OVERRIDE ...]

The variants of `text` are algorithms, those of `pe` and `unified` the tracks that learn. Each is
`rl-train run RECIPE OVERRIDE ...` with the same data, seed, samples and steps; an existing run is
continued or read, never repeated. The numbers come from MLflow. Each takes some minutes on an idle
machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from mlflow import MlflowClient

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


@dataclass(frozen=True)
class Comparison:
    """The variants of a recipe, and the metrics that compare them."""

    variants: dict[str, tuple[str, ...]]
    """Overrides of each variant."""
    shared: tuple[str, ...]
    """Overrides of all variants."""
    held_out: str
    """MLflow's name of the held-out score."""
    title: str
    picture: Path
    sampled: str = "reward_mean"
    """MLflow's name of the sampled reward."""


def _tree(rewrites: int, pictures: int) -> tuple[str, ...]:
    """Return the overrides for a number of rewrites per prompt and of pictures per rewrite; their
    product is the same for all variants."""
    return f"rollout.samples_per_prompt={rewrites}", f"tracks.images.samples_per_rewrite={pictures}"


COMPARISONS = {
    "text": Comparison(
        {name: (f"algorithm={{name: {name}}}",) for name in ("grpo", "dapo", "rloo", "gspo")},
        ("training.num_iterations=5", "training.steps_per_iteration=2", "evaluation.eval_every=1"),
        "eval/accuracy",
        "Held-out accuracy, greedy",
        IMAGES / "algorithm-curves.png",
    ),
    "pe": Comparison(
        {
            "text": _tree(8, 1),
            "images": ("tracks.text.train=false", "tracks.images.train=true", *_tree(1, 8)),
            "both": ("tracks.images.train=true", *_tree(4, 2)),
        },
        (
            "training.num_iterations=2",
            "training.steps_per_iteration=6",
            "training.prompts_per_step=16",
        ),
        "eval/judge_independent",
        "Held-out score of the judge that was not trained on",
        IMAGES / "pe-track-curves.png",
        "images/reward_mean",
    ),
    "unified": Comparison(
        {"text": ("unified.images.weight=0",), "images": ("unified.text.weight=0",), "both": ()},
        ("training.num_iterations=2", "training.steps_per_iteration=6"),
        "eval/judge_independent",
        "Held-out score of the judge that was not trained on",
        IMAGES / "unified-track-curves.png",
        "images/reward_mean",
    ),
}


@dataclass(frozen=True)
class Learnt:
    """Curves of one run from MLflow: (step, value) pairs in order."""

    sampled: list[tuple[int, float]]
    held_out: list[tuple[int, float]] = field(default_factory=list)


def run_of(recipe: str, variant: str) -> str:
    """Return the name of a variant's run in MLflow."""
    return f"curve-{recipe}-{variant.replace('_', '-')}"


def train(recipe: str, variant: str, home: Path, overrides: list[str]) -> None:
    """Run the recipe to its end. Raises: CalledProcessError when it fails."""
    compared = COMPARISONS[recipe]
    own = [*compared.variants[variant], *compared.shared, *overrides]
    run_recipe(recipe, run_of(recipe, variant), own, home)


def run_recipe(recipe: str, name: str, overrides: Sequence[str], home: Path) -> None:
    """Run a recipe under a name to its end. Raises: CalledProcessError when it fails."""
    command = [sys.executable, "-m", "flows.cli", "run", recipe, f"name={name}", *overrides]
    subprocess.run(command, check=True, env=os.environ | {"RL_TRAIN_HOME": str(home)})


def curves_of(name: str, metrics: Sequence[str], client: MlflowClient) -> Learnt:
    """Return the curves of the newest finished run of a name. Args: metrics: of the sampled curve,
    and of the held-out one if there are two. Raises: LookupError when MLflow has no such run."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    # A run that was given up, of another recipe under that name, may be younger than this one.
    wanted = f"params.name = '{name}' and attributes.status = 'FINISHED'"
    found = client.search_runs(
        experiments, wanted, order_by=["attributes.start_time DESC"], max_results=1
    )
    if not found:
        raise LookupError(f"MLflow has no run with {wanted}")
    histories = [client.get_metric_history(found[0].info.run_id, one) for one in metrics]
    return Learnt(
        *(sorted({point.step: point.value for point in history}.items()) for history in histories)
    )


def draw(runs: dict[str, Learnt], title: str, path: Path) -> None:
    """Draw two panels, sampled and held out, with one line per variant."""
    figure = Figure(figsize=(11, 4.5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharex=True)
    for name, run in runs.items():
        left.plot(*zip(*run.sampled, strict=True), label=name)
        right.plot(*zip(*run.held_out, strict=True), marker="o", label=name)
    for axes, said in ((left, "Sampled reward, mean of the step"), (right, title)):
        axes.set(title=said, xlabel="step", ylim=(0, 1))
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Train missing variants, print the first and last numbers and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".rl-train"))
    parser.add_argument("--recipe", choices=list(COMPARISONS), default="text")
    parser.add_argument("--variants", nargs="+", help="of the recipe's; unset takes all")
    parser.add_argument("--picture", type=Path, help="unset takes the one in docs/images")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    args = parser.parse_args()
    home = args.home.resolve()
    compared = COMPARISONS[args.recipe]
    names, picture = args.variants or list(compared.variants), args.picture or compared.picture
    for name in names:
        train(args.recipe, name, home, args.overrides)
    uri = f"sqlite:///{home / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    metrics = compared.sampled, compared.held_out
    runs = {name: curves_of(run_of(args.recipe, name), metrics, client) for name in names}
    draw(runs, compared.title, picture)
    print(f"{'variant':24}{'sampled, first -> last 4 steps':>34}{'held out, before -> after':>30}")
    for name, run in runs.items():
        first, last = (
            sum(value for _, value in part) / len(part)
            for part in (run.sampled[:4], run.sampled[-4:])
        )
        print(
            f"{name:24}{f'{first:.2f} -> {last:.2f}':>34}"
            f"{f'{run.held_out[0][1]:.2f} -> {run.held_out[-1][1]:.2f}':>30}"
        )
    print(f"picture: {picture}")


if __name__ == "__main__":
    main()
