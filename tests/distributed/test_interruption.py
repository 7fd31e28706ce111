"""A signal that ends the run is heeded at once: while workers are busy, and while Ray starts."""

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.processes import command_line, still_running

DRIVER = '''
import signal, sys, time
from contextlib import nullcontext
from rl_core.distributed import DevicePool, placement, ray_cluster, remote
from rl_core.distributed.cluster import early_cluster
from tests.distributed.sleeper import Sleeper

class Ended(BaseException):
    """As Prefect's TerminationSignal, no KeyboardInterrupt, which Ray would let through."""

def end(signum, frame):
    raise Ended

for one in (signal.SIGINT, signal.SIGTERM):
    signal.signal(one, end)
early = early_cluster(1, "cpu") if "early" in sys.argv else nullcontext()
with early, ray_cluster(None, 1, "cpu"):
    for _ in range(2):
        with placement(DevicePool(1)) as block:
            sleeper = remote(Sleeper)
        try:
            print("asleep", flush=True)
            sleeper.sleep(100.0)
        except Ended:
            print("interrupted", flush=True)
        finally:
            block.close()
'''

STARTING = """
import signal, time
from rl_core.distributed.cluster import early_cluster
from rl_core.runtime.child_reaper import no_orphans

signal.signal(signal.SIGTERM, signal.default_int_handler)
with no_orphans(), early_cluster(1, "cpu"):
    time.sleep(600)
"""
GONE_S = 10.0


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A program in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def heard(driver: subprocess.Popen[str]) -> str:
    """The next line that the program itself prints; Ray prints there that a worker was ended, if
    that takes long enough."""
    assert driver.stdout is not None
    return next((line for line in driver.stdout if "(raylet)" not in line), "")


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["early", pytest.param("later", marks=pytest.mark.long)])
def test_a_busy_worker_does_not_hold_up_an_interruption(cluster: str) -> None:
    """Nor does a handler of Ray's, which aborts the process, take the place of the run's."""
    driver = started(DRIVER, cluster)
    try:
        for ending in (signal.SIGINT, signal.SIGTERM):
            assert heard(driver) == "asleep\n"
            time.sleep(1.5)
            driver.send_signal(ending)
            sent = time.monotonic()
            assert heard(driver) == "interrupted\n"
            assert time.monotonic() - sent < GONE_S, "it waited for the call, or a heartbeat"
        assert heard(driver) == ""
        errors = driver.communicate(timeout=60)[1]
        assert driver.returncode == 0
        assert "SIGTERM received" not in errors
    finally:
        driver.kill()
        driver.communicate()


def test_nothing_of_ours_waits_where_ray_may_drop_an_interruption() -> None:
    """`rl_core.distributed.answers` says why, and how to wait."""
    root = Path(__file__).parents[2]
    answers = root / "rl_core/distributed/answers.py"
    files = {path for name in ("rl_core", "flows", "tasks") for path in (root / name).rglob("*.py")}
    waits = re.compile(r"\bray\.(get|wait)\(")
    files.remove(answers)
    assert [path for path in files if waits.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.slow
def test_an_interruption_does_not_wait_for_a_cluster_that_does_not_start() -> None:
    driver = started(STARTING)
    below: list[psutil.Process] = []
    try:
        server = _first_server_of_ray(driver)
        server.suspend()
        time.sleep(1.0)
        below = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGTERM)
        errors = driver.communicate(timeout=GONE_S)[1]
        assert errors.splitlines()[-1] == "KeyboardInterrupt"
        assert not still_running(below)
    finally:
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        driver.kill()
        driver.communicate()


def _first_server_of_ray(driver: subprocess.Popen[str]) -> psutil.Process:
    """The process that holds a cluster's state, without which Ray does not start."""
    while driver.poll() is None:
        for process in psutil.Process(driver.pid).children(recursive=True):
            if any("gcs_server" in part for part in command_line(process)):
                return process
        time.sleep(0.01)
    raise AssertionError("Ray never began to start")
