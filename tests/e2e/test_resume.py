"""Killed processes: the run that went on ends bit-identical to one that was never disturbed, and leaves no process."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, alive, cmdline
from tests.e2e.outcomes import assert_identical, is_trained, run_folder, trained_weights

pytestmark = pytest.mark.slow


def test_killed_runs_end_bit_identical_to_an_undisturbed_one(
    start: Callable[..., Run], tiny_recipe: Path, tiny_model_dir: Path, undisturbed: Path, tmp_path: Path
) -> None:
    expected = trained_weights(undisturbed)
    assert is_trained(tiny_model_dir, run_folder(undisturbed) / "model")

    worker_killed = start(tiny_recipe, tmp_path / "worker-killed")
    worker_killed.wait_for("train-iteration 1: complete")
    for worker in worker_killed.workers():
        worker.kill()
    assert worker_killed.finish() == 0, worker_killed.output
    assert worker_killed.output.count("start workers") == 2, "the retry started no fresh workers"
    assert_identical(trained_weights(tmp_path / "worker-killed"), expected)

    flow_killed = start(tiny_recipe, tmp_path / "flow-killed", own_server=True)
    flow_killed.wait_for("train-iteration 1: complete")
    assert any("uvicorn" in " ".join(cmdline(below)) for below in flow_killed.descendants())
    below = flow_killed.kill()
    assert not alive(below)
    assert not list((tmp_path / "flow-killed" / "runs").glob("*/model")), "killed too late to show anything"
    continued = start(tiny_recipe, tmp_path / "flow-killed", own_server=True)
    assert continued.finish() == 0, continued.output
    assert "train-iteration 1: was complete already, skipped" in continued.output
    assert_identical(trained_weights(tmp_path / "flow-killed"), expected)

    again = start(tiny_recipe, tmp_path / "flow-killed", own_server=True)
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


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on_and_leaves_no_process(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path, ending: signal.Signals
) -> None:
    run = start(tiny_recipe, tmp_path / "home", own_server=True)
    run.wait_for("train-iteration 1: complete")
    below = run.descendants()
    run.process.send_signal(ending)
    assert run.finish() == 130, run.output
    assert "the same command continues" in run.output
    assert "Traceback" not in run.output
    assert not alive(below)
