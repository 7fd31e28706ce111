"""OpenMP's threads sleep while they wait as long as others need the cores, and spin otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rl_core.kernels import spare_busy_cores
from rl_core.kernels.idle_threads import busy_seconds, is_crowded

SLEEPS = """
import threading, time
from pathlib import Path
import torch
from rl_core.kernels import idle_threads

torch.set_num_threads(2)
left, right = torch.ones(64, 256), torch.ones(256, 256)

def num_sleeps():
    tasks = list(Path("/proc/self/task").glob("*/status"))
    return sum(int(line.split()[1]) for task in tasks for line in task.read_text().splitlines()
               if line.startswith("voluntary_ctxt_switches"))

def num_sleeps_of(products):
    own = Path(f"/proc/self/task/{threading.get_native_id()}/status")
    before = num_sleeps()
    for _ in range(products):
        left @ right
    return num_sleeps() - before

left @ right
idle_threads.is_crowded = lambda *_: crowded
crowded = False
neighbours = idle_threads.spare_busy_cores(2)
spinning = num_sleeps_of(2000)
crowded = True
deadline = time.monotonic() + 60
while neighbours.team is None and time.monotonic() < deadline:
    time.sleep(0.05)
time.sleep(0.2)
sleeping = num_sleeps_of(2000)
crowded = False
while neighbours.team is not None and time.monotonic() < deadline:
    time.sleep(0.05)
again = num_sleeps_of(2000)
neighbours.stop()
print(spinning, sleeping, again)
"""
WATCH = """
import time
import torch
from rl_core.kernels import idle_threads

torch.set_num_threads(2)
torch.ones(64, 256) @ torch.ones(256, 256)
neighbours = idle_threads.spare_busy_cores(len(idle_threads.os.sched_getaffinity(0)))
deadline = time.monotonic() + 60
while neighbours.team is None and time.monotonic() < deadline:
    time.sleep(0.05)
print(neighbours.team is not None)
"""


def output_of(program: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_threads_sleep_while_it_is_crowded_and_spin_before_and_after():
    spinning, sleeping, again = map(int, output_of(SLEEPS))
    assert sleeping > 1000 and sleeping > 3 * max(spinning, again), (spinning, sleeping, again)


def test_a_busy_process_beside_this_one_is_noticed():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert output_of(WATCH) == ["True"]
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.parametrize(
    ("others", "num_threads", "num_cores", "crowded"),
    [
        (0.1, 2, 2, False),  # Ray's daemons
        (0.9, 2, 2, True),
        (1.0, 1, 2, False),  # two ranks with a thread each
        (1.0, 6, 8, False),
        (3.0, 6, 8, True),
    ],
)
def test_it_is_crowded_where_others_use_more_than_what_is_left(
    others: float, num_threads: int, num_cores: int, crowded: bool
):
    assert is_crowded(others, num_threads, num_cores) is crowded


def test_the_work_of_other_cores_does_not_count(tmp_path: Path):
    stat = tmp_path / "stat"
    states = "100 0 50 7000 30 0 0 20 5 0"
    stat.write_text(f"cpu {states}\ncpu0 {states}\ncpu1 {states}\nintr 5\n")
    ticks = 100 + 50 + 20
    assert busy_seconds({1}, stat) == pytest.approx(busy_seconds({0, 1}, stat) / 2)
    assert busy_seconds({1}, stat) * ticks > 0


def test_the_users_own_choice_and_a_single_thread_stay(monkeypatch: pytest.MonkeyPatch):
    assert spare_busy_cores(1) is None
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert spare_busy_cores(2) is None
