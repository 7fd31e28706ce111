"""However a run ends, Prefect and MLflow say the same about it, and soon."""

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Run
from tests.e2e.prefect_api import wait_until
from tests.processes import open_to_others, still_running

pytestmark = pytest.mark.slow


def ends(home: Path) -> tuple[list[str], str, int | None]:
    """The state of each flow run of a home in Prefect, oldest first; status and end time of its
    MLflow run."""
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as prefect:
        states = prefect.execute("SELECT state_type FROM flow_run ORDER BY created").fetchall()
    with closing(sqlite3.connect(home / "mlflow.db")) as mlflow:
        (run,) = mlflow.execute("SELECT status, end_time FROM runs").fetchall()
    return [state for (state,) in states], *run


def test_the_records_agree_after_every_kind_of_end(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("PREFECT_HOME", str(home / "prefect"))

    killed = start(tiny_recipe, home, own_server=True)
    killed.wait_for("train-iteration 1: complete")
    assert not open_to_others([psutil.Process(killed.process.pid), *killed.descendants()])
    assert not still_running(killed.kill())
    wait_until(lambda: ends(home)[:2] == (["CRASHED"], "FAILED"), "the records of a killed run")

    stopped = start(tiny_recipe, home, own_server=True)
    stopped.wait_for("train-iteration 2: complete")
    below = stopped.descendants()
    # As `timeout`, systemd and Slurm do: to the whole group.
    os.killpg(stopped.process.pid, signal.SIGTERM)
    assert stopped.finish() == 130, stopped.output
    assert "the same command continues" in stopped.output
    assert "Traceback" not in stopped.output
    assert not still_running(below)
    assert ends(home)[:2] == (["CRASHED", "CRASHED"], "KILLED")

    finished = start(tiny_recipe, home, own_server=True)
    assert finished.finish() == 0, finished.output
    states, status, ended = ends(home)
    assert (states[2:], status) == (["COMPLETED"], "FINISHED")

    again = start(tiny_recipe, home, own_server=True)
    assert again.finish() == 0, again.output
    states, status, ended_again = ends(home)
    assert (states[3:], status) == (["COMPLETED"], "FINISHED")
    assert ended_again == ended, "a rerun that did nothing moved the end of the run"
