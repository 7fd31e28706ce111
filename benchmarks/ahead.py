"""`make bench-ahead`: a step of the recipe `text` on two devices with one core each, in turns and
one or four steps ahead.

    python -m benchmarks.ahead [--rounds 2] [--steps 4] [--waits] [--write] [key=value ...]

One device trains, the other samples. `turns`: rollout, then training. `1 ahead`, `4 ahead`:
rollouts of that many later steps run during training. `in flight`: with weights that arrive
meanwhile. `one device`: the in-process engine with both
cores. Each round starts new workers for each; the first two steps are warm-up, and the last four,
for which ever fewer rollouts run ahead, are left out. `--waits`: both sides wait for the time that
devices of their own would take (`benchmarks.waits`). `key=value` changes the recipe of all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time

from benchmarks import page, waits
from rl_core.builtin.data.reasoning_problems import GenerateSpec, materialise
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.distributed import ray_cluster
from rl_core.models.locate import locate
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.home import Home
from rl_core.trainers.domains.text import TextTrainer

WARM_UP, DEEPEST = 2, 4
SIZES = [
    "rollout.max_new_tokens=64",
    "fsdp.param_dtype=bfloat16",
    "algorithm.correction={level: token, upper: 2.0}",
]
TWO = ["placement.num_devices=2", "placement.rollout_devices=1", "placement.threads_per_device=1"]
WAYS = {
    "turns": [*TWO, "rollout.engine=dedicated"],
    "1 ahead": [*TWO, "rollout.engine=dedicated", "rollout.steps_ahead=1"],
    "4 ahead": [*TWO, "rollout.engine=dedicated", "rollout.steps_ahead=4"],
    "4 ahead, in flight": [
        *TWO,
        "rollout.engine=dedicated",
        "rollout.steps_ahead=4",
        "rollout.in_flight=true",
    ],
    "one device": ["placement.num_devices=1", "placement.threads_per_device=2"],
}
SHOWN = (
    "seconds/rollout",
    "seconds/train",
    "seconds/sync",
    "delta_log_prob_mean",
    "staleness_mean",
)


def steps_of(overrides: list[str], num_steps: int, *, does_wait: bool) -> list[dict[str, float]]:
    """Return the metrics of the steps after the warm-up, with each one's wall-clock time as
    `step`."""
    last = num_steps + WARM_UP + DEEPEST
    steps = [f"training.steps_per_iteration={last}", "training.num_iterations=1"]
    recipe = load_recipe("text", [*SIZES, *overrides, *steps])
    make, spec = ItemMaker(), GenerateSpec.model_validate(recipe.data.train[0])
    with tempfile.TemporaryDirectory() as folder:
        rows = [json.loads(line) for line in materialise(spec, folder).read_text().splitlines()]
    items = [make(row, f"row {number}") for number, row in enumerate(rows)]
    if does_wait:
        items = [item | {"env_class": waits.ENVIRONMENT} for item in items]
    trainer = TextTrainer(recipe, locate(recipe.model.path, Home.default().models), items)
    found = []
    try:
        trainer.build()
        for _ in range(num_steps + WARM_UP):
            start = time.perf_counter()
            metrics, _ = trainer.step()
            found.append(metrics | {"step": time.perf_counter() - start})
    finally:
        trainer.close()
    return found[WARM_UP:]


def main() -> None:
    """Run all variants in turn and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--waits", action="store_true", help="wait as devices of their own would take"
    )
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with ray_cluster(None, 2, "cpu"):
        for number in range(args.rounds):
            for way, overrides in WAYS.items():
                own = waits.SIZES if args.waits else []
                changed = [*overrides, *own, *args.overrides]
                found[way] += steps_of(changed, args.steps, does_wait=args.waits)
                seconds = statistics.mean(step["step"] for step in found[way])
                print(f"round {number + 1}, {way}: {seconds:.2f} s a step so far", flush=True)
    turns = statistics.mean(step["step"] for step in found["turns"])
    lines = []
    for way, steps in found.items():
        middle = {}
        for key in ("step", *SHOWN):
            middle[key] = statistics.mean(step.get(key, 0.0) for step in steps)
        shown = [f"{middle[key]:.2f}" for key in SHOWN[:3]] + [
            f"{middle[key]:.4f}" for key in SHOWN[3:4]
        ]
        lines.append(
            [
                way,
                f"{middle['step']:.2f}",
                f"{turns / middle['step']:.2f}",
                *shown,
                f"{middle[SHOWN[4]]:.2f}",
            ]
        )
    heads = [
        "way",
        "step s",
        "beside turns",
        "waits for rollout s",
        "train s",
        "sync s",
        "mean Δlogp",
        "mean staleness",
    ]
    changed = f", with {' '.join(args.overrides)}" if args.overrides else ""
    sizes = "Recipe text with 64 new tokens, adapters in bfloat16"
    if args.waits:
        sizes = (
            f"Both sides wait as devices of their own would take: a reply lognormally "
            f"({waits.MEDIAN_S:g} s, spread {waits.SPREAD:g}), a rollout as its slowest of 8, "
            f"training {waits.TRAINING_S:g} s"
        )
    body = (
        f"{sizes}; means of {args.rounds} x {args.steps} steps. {page.machine()}{changed}.\n\n"
        f"{page.table(heads, lines)}"
    )
    print(f"\n{body}")
    if args.write:
        title = "A rollout ahead, by waiting" if args.waits else "A rollout ahead"
        page.write_section(f"{title}: `make bench-ahead`", body)


if __name__ == "__main__":
    main()
