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
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_busy_worker_does_not_hold_up_an_interruption(ending: signal.Signals) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    try:
        assert driver.stdout.readline() == "asleep\n"
        time.sleep(1.5)
        driver.send_signal(ending)
        assert driver.communicate(timeout=60)[0] == "interrupted\n"
        assert driver.returncode == 0
    finally:
        driver.kill()
        driver.communicate()
