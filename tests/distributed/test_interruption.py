"""A signal that ends the run is heeded while workers are busy, not after their call."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DRIVER = """
import signal, sys, time
from rl_core.distributed import DevicePool, placement, ray_cluster, remote
from tests.distributed.sleeper import Sleeper

def end(signum, frame):
    raise KeyboardInterrupt

for one in (signal.SIGINT, signal.SIGTERM):
    signal.signal(one, end)
with ray_cluster(None, 1, "cpu"):
    for _ in range(2):
        with placement(DevicePool(1)) as block:
            sleeper = remote(Sleeper)
        try:
            print("asleep", flush=True)
            sleeper.sleep(100.0)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        finally:
            block.close()
"""


@pytest.mark.slow
def test_a_busy_worker_does_not_hold_up_an_interruption() -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    try:
        for ending in (signal.SIGINT, signal.SIGTERM):
            assert driver.stdout.readline() == "asleep\n"
            time.sleep(1.5)
            driver.send_signal(ending)
            sent = time.monotonic()
            assert driver.stdout.readline() == "interrupted\n"
            assert time.monotonic() - sent < 90, "it waited for the end of the call"
        assert driver.communicate(timeout=60)[0] == ""
        assert driver.returncode == 0
    finally:
        driver.kill()
        driver.communicate()
