"""One process at a time works on a run; other runs of the same recipe do not wait for it."""

import os
import threading
import time
from pathlib import Path

import pytest

from rl_core.data.store import lock
from rl_core.runs.ownership import owned_run
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.home import Home

DEADLINE_S = 60.0


@pytest.mark.parametrize("shared", [False, True], ids=["one home", "two homes, one shared folder"])
def test_a_second_owner_waits_for_the_first_and_says_so_once(tmp_path: Path, shared: bool):
    storage = [f"placement.storage={tmp_path / 'shared'}"] if shared else []
    recipe, home = load_recipe("text", storage), Home(tmp_path / "home")
    others = Home(tmp_path / "other home") if shared else home
    said: list[str] = []
    order: list[str] = []

    def work() -> None:
        with owned_run(recipe, "rows", others, said.append):
            order.append("second")

    second = threading.Thread(target=work)
    with owned_run(recipe, "rows", home):
        second.start()
        end = time.monotonic() + DEADLINE_S
        while not said and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(4 * lock.FIRST_REPORT_S)
        order.append("first")
    second.join(DEADLINE_S)
    assert order == ["first", "second"]
    (told,) = said
    assert told.startswith(f"waiting for process {os.getpid()} on ")


def test_other_rows_and_other_settings_are_other_runs(tmp_path: Path):
    def _waits(told: str) -> None:
        raise AssertionError(told)

    home = Home(tmp_path)
    other = load_recipe("text", ["optimizer.learning_rate=1e-6"])
    with (
        owned_run(load_recipe("text"), "rows", home),
        owned_run(load_recipe("text"), "other rows", home, _waits),
        owned_run(other, "rows", home, _waits),
    ):
        pass
