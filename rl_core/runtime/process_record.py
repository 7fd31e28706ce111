"""Processes that outlive the command that started them, identified by id and start time."""

from __future__ import annotations

import psutil

GRACE_S = 20.0
_SAME_S = 0.1
"""Tolerance of start times; another process with the same id began later."""


def start_time(process: psutil.Process) -> float:
    """Return the seconds from the machine's start to the process's, which do not change when the
    clock is set."""
    # A process keeps the time by the clock once it has been asked for it; a new one asks again.
    return psutil.Process(process.pid).create_time() - psutil.boot_time()


def find_process(pid: int, started: float) -> psutil.Process | None:
    """Return the process with this id and `start_time`, or None if it has ended (its id may be
    reused)."""
    try:
        process = psutil.Process(pid)
        gone = (
            abs(start_time(process) - started) > _SAME_S or process.status() == psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return None
    return None if gone else process


def stop_tree(process: psutil.Process, grace_s: float = GRACE_S) -> None:
    """End a process in an orderly way, and then kill all its descendants."""
    below: list[psutil.Process] = []
    try:
        below = process.children(recursive=True)
        process.terminate()
        process.wait(grace_s)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        process.kill()
    _, left = psutil.wait_procs(below, timeout=1)
    for child in left:
        child.terminate()
    _, left = psutil.wait_procs(left, timeout=grace_s)
    for child in left:
        child.kill()
    psutil.wait_procs([process, *left], timeout=grace_s)
