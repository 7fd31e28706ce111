"""Allocator settings of a CPU process: memory freed by tensors stays in the process for the next
ones.

By default the C library returns large blocks to the system at once, which has to clear every page
before it hands it out again, and keeps fragments in many arenas.
"""

from __future__ import annotations

import ctypes
import os

# Parameter numbers from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = (
    # All threads, including that of the backward pass, share one arena.
    (M_ARENA_MAX, 1),
    # Large blocks come from that arena, too.
    (M_MMAP_MAX, 0),
    (M_TRIM_THRESHOLD, 2**31 - 1),
)


def keep_freed_memory() -> bool:
    """Keep freed memory in this process from now on, in pages of 2 MiB for torch's large blocks.
    Returns: True if the C library supports it.

    Call it before the first tensor. C libraries other than glibc stay as they are.
    """
    # torch reads this once, at its first allocation.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(name, value) for name, value in SETTINGS])
