"""Killed processes: the run that went on ends bit-identical to one that was never disturbed, and
leaves no process."""

import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, assert_kills_change_nothing
from tests.e2e.outcomes import is_trained, run_folder
from tests.processes import still_running

pytestmark = pytest.mark.slow


def test_killed_runs_end_bit_identical_to_an_undisturbed_one(
    start: Callable[..., Run],
    tiny_recipe: Path,
    tiny_model_dir: Path,
    undisturbed: Path,
    tmp_path: Path,
) -> None:
    assert is_trained(tiny_model_dir, run_folder(undisturbed) / "model")
    start_alone = partial(start, own_server=True)

    def go_on(recipe: Path, home: Path) -> None:
        continued = start_alone(recipe, home)
        assert continued.finish() == 0, continued.output
        assert "train-iteration 2: was complete already, skipped" in continued.output

    assert_kills_change_nothing(start_alone, tiny_recipe, tmp_path, undisturbed, go_on=go_on)
    again = start_alone(tiny_recipe, tmp_path)
    assert again.finish() == 0, again.output
    assert "validate-data cached" in again.output
    assert "prepare-cache cached" in again.output
    assert "start workers" not in again.output, "a finished run needs no workers"


def test_a_model_that_does_not_exist_ends_with_one_message(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
) -> None:
    run = start(tiny_recipe, tmp_path / "home", "model.path=./no-such-model")
    assert run.finish() == 2, run.output
    assert "error: model.path ./no-such-model: no such folder" in run.output
    assert "Traceback" not in run.output
    assert not list((tmp_path / "home").glob("runs/*"))


def test_an_interrupted_run_says_how_to_go_on_and_leaves_no_process(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
) -> None:
    run = start(tiny_recipe, tmp_path / "home", own_server=True)
    run.wait_for("train-iteration 1: complete")
    below = run.descendants()
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 130, run.output
    assert "the same command continues" in run.output
    assert "Traceback" not in run.output
    assert not still_running(below)
