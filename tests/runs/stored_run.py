"""A real training whose storage is an object store, in a process that reaches it: trained in one
home, gone on with and measured in another, and found done in the first. Takes a folder and a
model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from prefect.logging import disable_run_logger

from rl_core.runs.session import TrainingSession, close_sessions
from tasks.open_run import open_run
from tasks.prepare_cache import prepare_cache
from tasks.validate_data import validate_data
from tests.made_runs import recipe_of


def opened(recipe: dict[str, Any], home: Path) -> TrainingSession:
    """Open the run in a home."""
    os.environ["RL_TRAIN_HOME"] = str(home)
    report = validate_data.fn(recipe)
    return TrainingSession(open_run.fn(recipe, report, prepare_cache.fn(recipe, report), False))


def main(folder: Path, model: Path) -> None:
    """Train, go on elsewhere, look again."""
    recipe = recipe_of(
        "stored",
        folder,
        model,
        training={"num_iterations": 2, "steps_per_iteration": 1, "prompts_per_step": 2},
        rollout={"samples_per_prompt": 2, "max_new_tokens": 4},
        placement={"num_devices": 1, "storage": "s3://bucket/runs"},
    )
    first = opened(recipe, folder / "a")
    one = first.train_iteration(1)
    second = opened(recipe, folder / "b")
    again = second.train_iteration(1)
    assert again.skipped and again.metrics == one.metrics
    first.close()
    two = second.train_iteration(2)
    assert (two.first_step, two.last_step) == (2, 2)
    exported = second.export(2)
    assert exported.is_relative_to(folder / "b") and (exported / "config.json").is_file()
    assert second.evaluate("final", 2, exported=True).step == 2
    second.close()
    third = opened(recipe, folder / "a")
    assert third.folder.complete_iterations() == [1, 2]
    assert [step["step"] for step in third.folder.history()] == [1.0, 2.0]
    assert third.train_iteration(2).skipped
    assert not list((folder / "a").glob("runs/*/checkpoints/iteration-*"))
    close_sessions()
    print("whole")


if __name__ == "__main__":
    with disable_run_logger():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
