"""Starting and stopping services together: one at a time, the last first, and nothing that another
start left."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from rl_core.errors import ServiceError
from rl_core.runtime.home import Home
from rl_core.runtime.process_record import find_process, start_time, stop_tree
from rl_core.services import service as service_module
from rl_core.services.all_services import Stack
from rl_core.services.service import Record, Service, State
from tests.processes import still_running

HERE = "127.0.0.1"
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('begun', "
    "flush=True); time.sleep(60)"
)


def sleeper(name: str = "sleeper", *, silent: bool = False, port: int = 0) -> Service:
    return Service(name, SLEEP, {}, f"http://{HERE}:{port}", lambda: not silent)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stack(tmp_path: Path, said: list[str]) -> Iterator[Stack]:
    made = Stack(Home(tmp_path / "home"), said.append)
    yield made
    made.down()


def started(stack: Stack, name: str) -> Record:
    record = stack._ensure(name, lambda port: sleeper(name, port=port), HERE)
    stack._wait_for_starts()
    return record


def test_what_runs_and_answers_is_left_alone(stack: Stack, said: list[str]) -> None:
    first = started(stack, "mlflow")
    again = stack._ensure("mlflow", lambda port: sleeper("mlflow", port=port), HERE)
    assert again == first and first.process is not None
    assert said == ["starting mlflow", f"mlflow runs at {first.url}", f"mlflow runs at {first.url}"]


def test_what_ended_or_says_nothing_is_started_anew(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PATIENCE_S", 0.0)
    first = started(stack, "mlflow")
    assert first.process is not None
    silent = iter([True, False])
    second = stack._ensure(
        "mlflow", lambda port: sleeper("mlflow", silent=next(silent), port=port), HERE
    )
    assert first.process is None and second.process is not None
    stop_tree(second.process)
    third = started(stack, "mlflow")
    assert third.process is not None and third.pid != second.pid
    assert first.url == second.url == third.url, "who knew its address finds it again"


def test_a_start_that_fails_stops_what_it_started_and_no_more(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = started(stack, "prefect")
    begun: list[Record] = []

    def start_all(host: str) -> None:
        begun.append(started(stack, "mlflow"))
        raise ServiceError("the next one does not come up")

    monkeypatch.setattr(stack, "_start_all", start_all)
    with pytest.raises(ServiceError, match="the next one"):
        stack.up()
    assert before.process is not None and begun[0].process is None
    assert stack._records().keys() == {"prefect"}


def test_the_last_started_is_stopped_first_and_forgotten(stack: Stack, said: list[str]) -> None:
    records = [started(stack, name) for name in ("worker-rl-light", "mlflow", "prefect")]
    said.clear()
    assert stack.down() == ["worker-rl-light", "mlflow", "prefect"]
    assert said == ["stopping worker-rl-light", "stopping mlflow", "stopping prefect"]
    assert [record.process for record in records] == [None] * 3
    assert stack._records() == {} and stack.down() == []


@pytest.mark.parametrize("command", ["up", "down"])
def test_only_one_command_at_a_time_starts_or_stops(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    begun = threading.Event()
    monkeypatch.setattr(stack, "_start_all", lambda _: begun.set())
    monkeypatch.setattr(stack, "_stop", lambda _: begun.set() or [])
    stack.home.root.mkdir(parents=True)
    thread = threading.Thread(target=getattr(stack, command))
    with FileLock(stack.home.root / "services.lock"):
        thread.start()
        assert not begun.wait(0.3), "another command holds the lock"
    assert begun.wait(10)
    thread.join()
    monkeypatch.undo()


def test_a_service_has_a_session_of_its_own_and_is_prepared_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "START_S", 5.0)
    prepared: list[bool] = []
    one = replace(sleeper(), prepare=lambda: prepared.append(True), answers=lambda: bool(prepared))
    record = one.start(tmp_path, tmp_path / "sleeper.log").wait()
    process = record.process
    assert process is not None
    try:
        # What ends the command that started it (Ctrl-C, a terminal that closes) does not reach it.
        assert os.getsid(process.pid) == process.pid
        assert prepared == [True]
    finally:
        stop_tree(process)


def test_a_process_that_says_nothing_is_silent(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PATIENCE_S", 0.0)
    record = started(stack, "mlflow")
    assert sleeper(silent=True).state(record) is State.SILENT
    assert sleeper().state(record) is State.RUNNING
    assert sleeper().state(None) is State.STOPPED


def test_neither_a_zombie_nor_a_later_process_with_its_id_is_the_one_that_was_recorded() -> None:
    process = psutil.Popen(SLEEP)
    began = start_time(process)
    for other in (began - 60, began + 60):
        assert find_process(process.pid, other) is None
    assert find_process(process.pid, began) is not None
    process.kill()
    while process.status() != psutil.STATUS_ZOMBIE:
        pass
    assert find_process(process.pid, began) is None
    process.wait()


def test_a_process_that_ignores_the_request_to_end_is_ended_with_its_children() -> None:
    parent = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {DEAF!r}]); "
        f"exec({DEAF!r})"
    )
    process = psutil.Popen([sys.executable, "-S", "-c", parent], stdout=-1, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        assert [said.readline(), said.readline()] == ["begun\n"] * 2
        everyone = [process, *process.children(recursive=True)]
        assert len(everyone) == 2
        stop_tree(process, grace_s=0.2)
    process.wait()
    assert not still_running(everyone, within_s=5.0)
