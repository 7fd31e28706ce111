"""Main memory that is left on this machine."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Return the bytes that this process may still take: of the machine, or of its container."""
    available, allowed = psutil.virtual_memory().available, container_room(CGROUP)
    return available if allowed is None else min(available, allowed)


def container_room(root: Path) -> int | None:
    """Return the bytes left below a container's memory limit; None without one."""
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used)
