"""Whether processes have ended."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

POLL_S = 0.05


def still_running(processes: Iterable[psutil.Process | int], within_s: float = 30.0) -> list[str]:
    """Those that have not ended by then. Args: processes: themselves or their ids.

    One that has ended and that nobody waits for keeps its id (a zombie); where orphans have no parent, for ever.
    """
    end = time.monotonic() + within_s
    left = list(processes)
    while left := [process for process in left if _runs(process)]:
        if time.monotonic() > end:
            return [_described(process) for process in left]
        time.sleep(POLL_S)
    return []


def command_line(process: psutil.Process) -> list[str]:
    """Empty when the process is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _runs(process: psutil.Process | int) -> bool:
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _described(process: psutil.Process | int) -> str:
    pid = process if isinstance(process, int) else process.pid
    try:
        return f"{pid} {' '.join(psutil.Process(pid).cmdline())[:200]}"
    except psutil.Error:
        return str(pid)
