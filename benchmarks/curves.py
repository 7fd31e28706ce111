"""Variants of one recipe, one after the other: sampled reward and held-out score in one picture.

    python -m benchmarks.curves [--recipe NAME] [--home FOLDER] [--variants NAME ...] [OVERRIDE ...]

The variants of `text` and `diffusion` are algorithms, those of `pe` and `unified` the tracks that
learn. Each is `rl-train run RECIPE OVERRIDE ...` with the same data, seed, samples and steps; a run
that is there already is continued or read, never repeated. The numbers come from MLflow. Each takes
some minutes on an idle machine.
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

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


@dataclass(frozen=True)
class Comparison:
    """What is compared on a recipe, and by what."""

    variants: dict[str, tuple[str, ...]]
    """Overrides of each."""
    shared: tuple[str, ...]
    """Overrides of all."""
    held_out: str
    """MLflow's name of the score."""
    title: str
    picture: Path
    sampled: str = "reward_mean"
    """MLflow's name of the sampled reward."""


def _tree(rewrites: int, pictures: int) -> tuple[str, ...]:
    """So many rewrites of a prompt and pictures of each; every variant draws as many pictures as
    the others."""
    return f"rollout.samples_per_prompt={rewrites}", f"tracks.images.samples_per_rewrite={pictures}"


COMPARISONS = {
    "text": Comparison(
        {name: (f"algorithm={{name: {name}}}",) for name in ("grpo", "dapo", "rloo", "gspo")},
        ("training.num_iterations=5", "training.steps_per_iteration=2", "evaluation.eval_every=1"),
        "eval/accuracy",
        "Held-out accuracy, greedy",
        IMAGES / "algorithm-curves.png",
    ),
    "diffusion": Comparison(
        {
            "flow_grpo": ("algorithm={name: flow_grpo}", "algorithm.kl.coef=0.0"),
            "diffusion_nft": (
                "algorithm={name: diffusion_nft}",
                "ema_full={decay: 0.5, warmup: ramp, ramp_step: 0.02, mirror: true, rollout: true}",
            ),
        },
        ("training.num_iterations=6", "training.steps_per_iteration=5", "evaluation.eval_every=1"),
        "eval/judge_independent",
        "Held-out score of the judge that was not trained on",
        IMAGES / "diffusion-algorithm-curves.png",
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
    """One run, as MLflow has it: (step, value) pairs in order."""

    sampled: list[tuple[int, float]]
    held_out: list[tuple[int, float]]


def run_of(recipe: str, variant: str) -> str:
    """The name of a variant's run, by which MLflow knows it."""
    return f"curve-{recipe}-{variant.replace('_', '-')}"


def train(recipe: str, variant: str, home: Path, overrides: list[str]) -> None:
    """Run the recipe to its end. Raises: CalledProcessError when it fails."""
    compared = COMPARISONS[recipe]
    own = [f"name={run_of(recipe, variant)}", *compared.variants[variant]]
    command = [sys.executable, "-m", "flows.cli", "run", recipe, *own, *compared.shared, *overrides]
    subprocess.run(command, check=True, env=os.environ | {"RL_TRAIN_HOME": str(home)})


def learnt(recipe: str, variant: str, client: MlflowClient) -> Learnt:
    """The newest run of a variant. Raises: LookupError when MLflow has none."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    wanted = f"params.name = '{run_of(recipe, variant)}'"
    found = client.search_runs(
        experiments, wanted, order_by=["attributes.start_time DESC"], max_results=1
    )
    if not found:
        raise LookupError(f"MLflow has no run with {wanted}")
    names = (COMPARISONS[recipe].sampled, COMPARISONS[recipe].held_out)
    histories = [client.get_metric_history(found[0].info.run_id, name) for name in names]
    return Learnt(
        *(sorted({point.step: point.value for point in history}.items()) for history in histories)
    )


def draw(runs: dict[str, Learnt], title: str, path: Path) -> None:
    """Two panels, sampled and held out, a line for each algorithm."""
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
    """Train what is missing, then print the first and last numbers and draw the picture."""
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
    runs = {name: learnt(args.recipe, name, client) for name in names}
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
