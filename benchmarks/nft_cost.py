"""Cost of DiffusionNFT and of Flow-GRPO to reach one score of the judge that was not trained on.

    python -m benchmarks.nft_cost [--score 0.5] [--seeds 0 1 2 3 4] [--home FOLDER] [--write]

DiffusionNFT (arXiv 2509.16117) claims to be up to 25 times as efficient as Flow-GRPO on Stable
Diffusion 3.5. Here both train the recipe `diffusion`, with the same start, prompts, judges and
number of samples a step, every weight trained, Flow-GRPO with a learning rate of 3e-4 instead of
4e-4 (1e-3 ruins it); neither was tuned further. The runs with DiffusionNFT are those of
`benchmarks.recipe_seeds`. A curve is read along a line between two evaluations. A ratio has the
95 % interval of Student's t over the logarithms of the seeds' ratios.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from mlflow import MlflowClient
from scipy.stats import t as student

from benchmarks import page
from benchmarks.curves import Learnt, curves_of, run_recipe
from benchmarks.recipe_seeds import INDEPENDENT, name_of

TITLE = "DiffusionNFT beside Flow-GRPO: `make bench-nft`"
FLOW_GRPO = (
    "algorithm={name: flow_grpo, kl: {coef: 0.0}}",
    "ema_full=null",
    "optimizer.learning_rate=3e-4",
)
SECONDS = ("seconds/rollout", "seconds/train")


def steps_to(score: float, run: Learnt) -> float:
    """Return after how many steps a held-out curve reaches a score. Raises: ValueError when it does
    not."""
    for (before, low), (after, high) in pairwise(run.sampled):
        if low < score <= high:
            return before + (after - before) * (score - low) / (high - low)
    raise ValueError(f"the curve {run.sampled} does not reach {score} from below")


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios, and its 95 % interval."""
    logs = [math.log(one) for one in ratios]
    mean, num = statistics.mean(logs), len(logs)
    half = float(student.ppf(0.975, num - 1)) * statistics.stdev(logs) / num**0.5
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def step_seconds(run: Learnt) -> float:
    """Return the median time of a step's rollout and training."""
    rollout, train = run.sampled, run.held_out
    both = [one[1] + other[1] for one, other in zip(rollout, train, strict=True)]
    return statistics.median(both)


def main() -> None:
    """Train missing runs and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=Path(".rl-train"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--score", type=float, default=0.5)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    args = parser.parse_args()
    if len(args.seeds) < 2:
        parser.error("--seeds: an interval takes at least two")
    home = args.home.resolve()
    uri = f"sqlite:///{home / 'mlflow.db'}"
    found: dict[str, list[tuple[float, float]]] = {"DiffusionNFT": [], "Flow-GRPO": []}
    for seed in args.seeds:
        names = {"DiffusionNFT": name_of("diffusion", seed), "Flow-GRPO": f"flow-grpo-{seed}"}
        run_recipe("diffusion", names["DiffusionNFT"], [f"seed={seed}"], home)
        run_recipe("diffusion", names["Flow-GRPO"], [f"seed={seed}", *FLOW_GRPO], home)
        client = MlflowClient(uri, uri)
        for algorithm, name in names.items():
            steps = steps_to(args.score, curves_of(name, (INDEPENDENT,), client))
            found[algorithm].append((steps, step_seconds(curves_of(name, SECONDS, client))))
    rows = []
    for algorithm, runs in found.items():
        steps, seconds = ([run[place] for run in runs] for place in (0, 1))
        rows.append(
            [algorithm, f"{statistics.mean(steps):.1f}", f"{statistics.mean(seconds):.1f} s"]
        )
    pairs = list(zip(found["Flow-GRPO"], found["DiffusionNFT"], strict=True))
    ratios = {
        "steps": [flow[0] / nft[0] for flow, nft in pairs],
        "seconds": [flow[0] * flow[1] / (nft[0] * nft[1]) for flow, nft in pairs],
    }
    said = []
    for what, values in ratios.items():
        mean, low, high = interval(values)
        said.append(f"{mean:.1f} times as many {what} ({low:.1f} to {high:.1f})")
    body = (
        f"To {args.score} by the independent judge Flow-GRPO takes {' and '.join(said)}; "
        f"{len(args.seeds)} seeds. {page.machine()}\n\n"
        f"{page.table(['algorithm', 'steps', 'a step, median'], rows)}"
    )
    print(body)
    if args.write:
        page.write_section(TITLE, body)


if __name__ == "__main__":
    main()
