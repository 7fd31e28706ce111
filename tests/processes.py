"""Whether processes have ended."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable

import psutil

POLL_S = 0.05


def still_running(processes: Iterable[psutil.Process | int], within_s: float = 30.0) -> list[str]:
    """Those that have not ended by then. Args: processes: themselves or their ids.

    One that has ended and that nobody waits for keeps its id (a zombie); where orphans have no
    parent, for ever.
    """
    end = time.monotonic() + within_s
    left = [process for process in map(_process, processes) if process is not None]
    while left := [process for process in left if _runs(process)]:
        if time.monotonic() > end:
            return [f"{process.pid} {' '.join(command_line(process))[:200]}" for process in left]
        time.sleep(POLL_S)
    return []


def command_line(process: psutil.Process) -> list[str]:
    """Empty when the process is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def open_to_others(processes: Iterable[psutil.Process]) -> list[str]:
    """Their TCP sockets that other machines could reach."""
    found = []
    for process in processes:
        try:
            sockets = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        for one in sockets:
            if one.status == psutil.CONN_LISTEN and not _is_loopback(one.laddr.ip):
                found.append(f"{one.laddr.ip}:{one.laddr.port} {' '.join(command_line(process))}")
    return found


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def _process(one: psutil.Process | int) -> psutil.Process | None:
    try:
        return psutil.Process(one) if isinstance(one, int) else one
    except psutil.NoSuchProcess:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
