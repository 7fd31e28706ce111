"""Part `ranks`: one GPU trains as each of several does, gathering and reducing through NCCL, beside
the shorter way of a rank that is alone."""

from __future__ import annotations

import statistics

from benchmarks.gpu_suite.notebook import Notebook
from benchmarks.gpu_suite.one_part import Place
from benchmarks.gpu_suite.one_rank import OneRank
from benchmarks.gpu_suite.shapes import Case
from rl_core.train.sharding import single_rank

CASE = Case("1.1B", 128, 64)
DRY = Case("dry", 16, 8, num_prompts=2, samples=2)
STEPS = 3


def run(notebook: Notebook, place: Place) -> None:
    """Take the same steps both ways, and note seconds and gradient norms."""
    case = DRY if place.is_dry else CASE
    in_place = single_rank.add_gradients_in_place
    for way in ("alone", "as on several ranks"):
        overrides: tuple[str, ...] = ()
        if way != "alone":
            overrides = ("fsdp.reshard_after_forward=true",)
            single_rank.add_gradients_in_place = lambda policy, reduce_dtype: None
        try:
            model = OneRank(case, place.scratch, place.device, overrides)
        finally:
            single_rank.add_gradients_in_place = in_place
        model.side.backend._alone = way == "alone"
        batches = model.take(case)
        steps = [model.side.step(batches[number], number) for number in range(STEPS)][1:]
        notebook.add(
            way=way,
            train=statistics.median(step["train"][0] for step in steps),
            step=statistics.median(step["step"][0] for step in steps),
            peak_bytes=max(step["peak_bytes"] for step in steps),
        )
        del model
