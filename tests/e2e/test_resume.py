"""Processes that end in every way, with servers of their own: the run that went on ends
bit-identical to one that was never disturbed and leaves no process, and Prefect and MLflow say the
same about each end, and soon."""

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, assert_kills_change_nothing
from tests.e2e.outcomes import is_trained, run_folder
from tests.e2e.prefect_api import wait_until
from tests.processes import still_running

pytestmark = pytest.mark.slow


def ends(home: Path) -> tuple[list[str], str, int | None]:
    """The state of each flow run of a home in Prefect, oldest first; status and end time of its
    MLflow run."""
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as prefect:
        states = prefect.execute("SELECT state_type FROM flow_run ORDER BY created").fetchall()
    with closing(sqlite3.connect(home / "mlflow.db")) as mlflow:
        (run,) = mlflow.execute("SELECT status, end_time FROM runs").fetchall()
    return [state for (state,) in states], *run


def end_by(send: Callable[[Run], None], run: Run) -> None:
    """End a run by a signal while it trains the last of three iterations."""
    run.wait_for("step   9/12")
    assert "train-iteration 2: was complete already, skipped" in run.output
    below = run.descendants()
    send(run)
    assert run.finish() == 130, run.output
    assert "the same command continues" in run.output
    assert "Traceback" not in run.output
    assert not still_running(below)


def test_killed_runs_end_bit_identical_to_an_undisturbed_one(
    start: Callable[..., Run],
    tiny_recipe: Path,
    tiny_model_dir: Path,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed workers, a killed flow, SIGTERM, SIGINT, and a rerun of what is done: one after the
    other in one home."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    assert is_trained(tiny_model_dir, run_folder(undisturbed) / "model")
    start_alone = partial(start, own_server=True)

    def go_on(recipe: Path, home: Path) -> None:
        wait_until(lambda: ends(home)[:2] == (["CRASHED"], "FAILED"), "the records of a killed run")
        # As `timeout`, systemd and Slurm do: to the whole group.
        end_by(lambda run: os.killpg(run.process.pid, signal.SIGTERM), start_alone(recipe, home))
        assert ends(home)[:2] == (["CRASHED"] * 2, "KILLED")
        end_by(lambda run: run.process.send_signal(signal.SIGINT), start_alone(recipe, home))
        assert ends(home)[:2] == (["CRASHED"] * 3, "KILLED")
        continued = start_alone(recipe, home)
        assert continued.finish() == 0, continued.output
        assert "train-iteration 2: was complete already, skipped" in continued.output

    assert_kills_change_nothing(start_alone, tiny_recipe, tmp_path, undisturbed, go_on=go_on)
    states, status, ended = ends(tmp_path)
    assert (states[3:], status) == (["COMPLETED"], "FINISHED")

    again = start_alone(tiny_recipe, tmp_path)
    assert again.finish() == 0, again.output
    assert "validate-data cached" in again.output
    assert "prepare-cache cached" in again.output
    assert "start workers" not in again.output, "a finished run needs no workers"
    states, status, ended_again = ends(tmp_path)
    assert (states[4:], status) == (["COMPLETED"], "FINISHED")
    assert ended_again == ended, "a rerun that did nothing moved the end of the run"


def test_a_model_that_does_not_exist_ends_with_one_message(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
) -> None:
    run = start(tiny_recipe, tmp_path / "home", "model.path=./no-such-model")
    assert run.finish() == 2, run.output
    assert "error: model.path ./no-such-model: no such folder" in run.output
    assert "Traceback" not in run.output
    assert not list((tmp_path / "home").glob("runs/*"))
