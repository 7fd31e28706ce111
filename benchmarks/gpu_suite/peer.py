"""Part `peer`: our step and TRL's in turns on the same GPU, where TRL is installed."""

from __future__ import annotations

import argparse
import sys

from benchmarks.gpu_suite.notebook import Notebook
from benchmarks.gpu_suite.one_part import Place
from benchmarks.gpu_suite.shapes import Case, settings_of

CASE = Case("1.1B", 128, 256)
DRY = Case("dry", 16, 8, num_prompts=2, samples=2)
TURNS = argparse.Namespace(warm_up=1, steps=2)


def run(notebook: Notebook, place: Place) -> None:
    """Take steps with all weights, then with adapters, and note the medians of each side."""
    import trl

    from benchmarks.trl import summary, take_turns

    notebook.add(kind="peer", version=trl.__version__)
    for lora in (False, True):
        sizes = vars(DRY if place.is_dry else CASE) | {"lora": lora}
        num_steps = TURNS.warm_up + TURNS.steps
        settings = settings_of(Case(**sizes), num_steps, place.scratch, place.device)
        for side in take_turns(settings, TURNS, place.scratch, sys.executable):
            figures = summary([side.steps], TURNS.warm_up)
            notebook.add(kind="side", side=side.name, **sizes, figures=figures)
