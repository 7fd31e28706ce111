"""Scores that the recipes of small models reach, over several seeds.

    python -m benchmarks.recipe_seeds [--recipes diffusion unified] [--seeds 0 1 2 3 4]
                                      [--home FOLDER] [--write] [OVERRIDE ...]

Each run is `rl-train run RECIPE seed=N OVERRIDE ...`, as a user would make it; an existing run is
continued or read, never repeated. The scores are MLflow's, on rows that training never saw. A run
takes three to ten minutes on two idle cores, after the start model is made, once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from mlflow import MlflowClient

from benchmarks import page
from benchmarks.async_curves import spread
from benchmarks.curves import Learnt, curves_of, run_recipe

TITLE = "What the small recipes reach: `make bench-recipes`"
INDEPENDENT = "eval/judge_independent"
SCORES = {
    "diffusion": (INDEPENDENT, "eval/judge_trained_on"),
    "unified": (INDEPENDENT, "eval/judge_trained_on"),
    "pe": (INDEPENDENT, "eval/judge_trained_on"),
    "vision": ("eval/accuracy",),
}
"""MLflow's names of each recipe's scores on held-out rows: the one that decides, and the one that
pays, where they differ."""


def name_of(recipe: str, seed: int) -> str:
    """Return the name of a run in MLflow."""
    return f"seed-{recipe}-{seed}"


def line(recipe: str, deciding: Sequence[Learnt], paying: Sequence[Learnt]) -> list[str]:
    """Return a row of the table, from the curves of all seeds."""
    before, after = ([run.sampled[end][1] for run in deciding] for end in (0, -1))
    gaps = []
    for run, paid in zip(deciding, paying, strict=True):
        gaps.append(paid.sampled[-1][1] - run.sampled[-1][1])
    steps = deciding[0].sampled[-1][0]
    gap = f"{statistics.mean(gaps):+.3f}" if any(gaps) else ""
    return [f"`{recipe}`", str(steps), spread(before), spread(after), gap]


def main() -> None:
    """Train missing runs and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=Path(".rl-train"))
    parser.add_argument("--recipes", nargs="+", choices=list(SCORES), default=list(SCORES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    args = parser.parse_args()
    home = args.home.resolve()
    uri = f"sqlite:///{home / 'mlflow.db'}"
    rows = []
    for recipe in args.recipes:
        deciding, paying = [], []
        for seed in args.seeds:
            name = name_of(recipe, seed)
            run_recipe(recipe, name, [f"seed={seed}", *args.overrides], home)
            client = MlflowClient(uri, uri)
            scores = SCORES[recipe]
            deciding.append(curves_of(name, scores[:1], client))
            paying.append(curves_of(name, scores[-1:], client))
        rows.append(line(recipe, deciding, paying))
    heads = ["recipe", "steps", "held out, before", "after", "paying judge's, above it"]
    body = (
        f"{len(args.seeds)} seeds each; mean, lowest and highest. {page.machine()}\n\n"
        f"{page.table(heads, rows)}"
    )
    print(body)
    if args.write:
        page.write_section(TITLE, body)


if __name__ == "__main__":
    main()
