"""`no_orphans`: what a process started goes when it is killed, and stays when it ends in an orderly
way, unless it asked otherwise."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from rl_core.runtime.child_reaper import LAST_WORD
from tests.e2e.prefect_api import wait_until
from tests.processes import command_line, still_running

# A child with a child of its own in another session, as Ray's agents and API servers are.
PARENT = """
import subprocess, sys, time
from rl_core.runtime.child_reaper import end_the_rest, no_orphans
child = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], \
start_new_session=True); print(p.pid, flush=True); p.wait()"
with no_orphans(), no_orphans():
    process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
    print(process.pid, flush=True)
    if sys.stdin.readline() == "end the rest\\n":
        end_the_rest()
"""  # noqa: E501


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def started_by(parent: subprocess.Popen[str]) -> list[psutil.Process]:
    assert parent.stdout is not None
    processes = [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]
    # Seen at least once by the watcher, which looks twice a second.
    psutil.wait_procs(processes, timeout=1.5)
    return processes


def test_a_killed_process_takes_everything_below_it_along(parent: subprocess.Popen[str]) -> None:
    below = psutil.Process(parent.pid).children(recursive=True) + started_by(parent)
    parent.kill()
    assert not still_running(below)
    assert said(parent) == f"{LAST_WORD}\n"


def said(parent: subprocess.Popen[str]) -> str:
    assert parent.stderr is not None
    return parent.stderr.read()


def test_so_it_does_after_its_watcher_was_killed(parent: subprocess.Popen[str]) -> None:
    below = started_by(parent)
    for _ in range(2):
        (watcher,) = watchers(parent)
        watcher.kill()
        watcher.wait(10)
        wait_until(lambda: watchers(parent), "another watcher", 10)
    below += watchers(parent)
    psutil.wait_procs(below, timeout=1.5)
    parent.kill()
    assert not still_running(below)


def watchers(parent: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(parent.pid).children()
    return [one for one in children if any("child_reaper" in part for part in command_line(one))]


def test_an_orderly_end_kills_nothing(parent: subprocess.Popen[str]) -> None:
    below = started_by(parent)
    assert parent.stdin is not None
    parent.stdin.write("go\n")
    parent.stdin.flush()
    try:
        assert parent.wait(10) == 0
        assert len(psutil.wait_procs(below, timeout=1.5)[1]) == len(below)
    finally:
        for process in below:
            process.kill()
    assert not said(parent)


def test_an_orderly_end_kills_what_it_is_asked_to(parent: subprocess.Popen[str]) -> None:
    below = started_by(parent)
    assert parent.stdin is not None
    parent.stdin.write("end the rest\n")
    parent.stdin.flush()
    assert parent.wait(10) == 0
    assert not still_running(below)
    assert not said(parent)
