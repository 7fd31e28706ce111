"""Jobs in several processes: results in order, progress, and processes that end early."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rl_core.data.prepare.workers import Advance, run_in_processes
from rl_core.errors import DataError, WorkerDied
from tests.data.stages.conftest import REPOSITORY

HERE = "tests.data.prepare.test_workers"
PARENT = f"""
import sys
from rl_core.data.prepare.workers import run_in_processes
run_in_processes("{HERE}:stays", [sys.argv[1], sys.argv[1]], print)
"""


def doubled(job: int, advance: Advance) -> tuple[int, int]:
    time.sleep(0.02 * (5 - job))
    advance(1)
    advance(job)
    return 2 * job, os.getpid()


def refuses(job: int, advance: Advance) -> int:
    raise DataError(f"job {job}")


def dies(job: int, advance: Advance) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stays(folder: str, advance: Advance) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


def test_results_come_in_order_and_all_progress_is_told() -> None:
    done: list[int] = []
    results = run_in_processes(f"{HERE}:doubled", list(range(5)), done.append)
    assert [value for value, _ in results] == [0, 2, 4, 6, 8]
    assert os.getpid() not in {pid for _, pid in results}
    assert sum(done) == 5 + sum(range(5))


def test_what_a_job_raises_is_raised() -> None:
    with pytest.raises(DataError, match=r"job [01]"):
        run_in_processes(f"{HERE}:refuses", [0, 1], print)


def test_a_worker_that_is_killed_is_named_as_such() -> None:
    with pytest.raises(WorkerDied, match="ended before its work was done"):
        run_in_processes(f"{HERE}:dies", [0, 1], print)


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], cwd=REPOSITORY)
    try:
        give_up_at = time.monotonic() + 60
        while not (pids := [int(path.name) for path in tmp_path.iterdir()]):
            assert parent.poll() is None and time.monotonic() < give_up_at
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
    workers = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert psutil.wait_procs(workers, timeout=10)[1] == []
