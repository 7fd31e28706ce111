"""An object in a process with an interpreter of its own: it answers, says what went wrong, and is
never waited for."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl_core.distributed import isolated_actor
from rl_core.distributed.isolated_actor import Outside, check_interpreter
from rl_core.errors import RecipeError, WeightMismatch, WorkerDied, WorkerError, WorkerHung
from tests.distributed.outside_parts import Fragile


@contextmanager
def running(timeout_s: float = 60.0) -> Iterator[Outside]:
    thing = Outside(
        sys.executable,
        Fragile,
        "a",
        label="the test",
        environment={"OUTSIDE": "c"},
        timeout_s=timeout_s,
    )
    try:
        yield thing
    finally:
        thing.close()


@pytest.mark.usefixtures("ray_cluster")
def test_it_answers_and_says_what_went_wrong():
    with running() as thing:
        assert thing.pid != os.getpid()
        assert thing.call("say", "b") == "abc"
        with pytest.raises(
            WeightMismatch, match=r"^a\nraised by Fragile of the test \(fail_as_ours, pid \d+\)"
        ):
            thing.call("fail_as_ours")
        with pytest.raises(
            WorkerError, match=r"Fragile of the test \(fail_as_theirs, pid \d+\): KeyError: 'a'"
        ) as caught:
            thing.call("fail_as_theirs")
        assert "in fail_as_theirs" in str(caught.value)
        os.kill(thing.pid, signal.SIGKILL)
        with pytest.raises(
            WorkerDied, match=r"Fragile of the test \(say, pid \d+\): the process ended"
        ):
            thing.call("say", "b")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_one_that_stands_still_is_given_up_and_one_that_works_is_not(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(isolated_actor, "HEARTBEAT_S", 0.5)
    with running(timeout_s=2.0) as thing:
        assert thing.call("work", 4.0) == "done"
        with pytest.raises(WorkerHung, match=r"\(stand_still, pid \d+\) has stood still for 2 s"):
            thing.call("stand_still")
        with pytest.raises(WorkerDied):
            thing.call("say", "b")


def test_an_interpreter_without_our_ray_is_refused(tmp_path: Path):
    check_interpreter(sys.executable)
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.11.7 1.0.0\n", encoding="utf-8")
    with pytest.raises(RecipeError, match="cannot be run"):
        check_interpreter(str(other))
    other.chmod(0o700)
    with pytest.raises(
        RecipeError,
        match=r"has Python and Ray 3\.11\.7 1\.0\.0; they must be the same on both sides",
    ):
        check_interpreter(str(other))
