"""A run whose own Ray loses its only node gets another and learns what it would have learnt, unless
Ray ended the run's process with it: then the same command does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rl_core.runtime.child_reaper import LAST_WORD
from tests.e2e.conftest import Run
from tests.e2e.outcomes import assert_identical, trained_weights
from tests.e2e.prefect_api import wait_until
from tests.processes import command_line, still_running

pytestmark = [pytest.mark.slow, pytest.mark.long]


def recorded_end(home: Path) -> str:
    """MLflow's status of the run of a home."""
    with closing(sqlite3.connect(home / "mlflow.db")) as mlflow:
        ((status,),) = mlflow.execute("SELECT status FROM runs").fetchall()
    return status


@pytest.mark.parametrize("moment", ["train-iteration 1: complete", "export"])
def test_a_killed_raylet_costs_a_retry_or_a_second_command(
    start: Callable[..., Run], tiny_recipe: Path, undisturbed: Path, tmp_path: Path, moment: str
) -> None:
    run = start(tiny_recipe, tmp_path / "home")
    run.wait_for(moment)
    below = run.descendants()
    (raylet,) = [one for one in below if any("raylet/raylet" in part for part in command_line(one))]
    raylet.kill()
    code = run.finish()
    assert "waiting up to" not in run.output, "nobody brings a private cluster another node"
    assert not still_running(below)
    if code:
        # Ray's own end of a process that was writing to the raylet.
        assert code == 1 and "Traceback" not in run.output, run.output
        assert LAST_WORD in run.lines, run.output
        wait_until(
            lambda: recorded_end(tmp_path / "home") == "FAILED", "MLflow's record of the end"
        )
        again = start(tiny_recipe, tmp_path / "home")
        assert again.finish() == 0, again.output
    assert_identical(trained_weights(tmp_path / "home"), trained_weights(undisturbed))
