"""How a process that computes on a CPU gets its memory: what tensors free stays there for the next
ones.

The C library otherwise gives large blocks back to the system at once, which has to clear every page
it lends again, and keeps fragments of many arenas besides.
"""

from __future__ import annotations

import ctypes
import os

# Numbers of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
SETTINGS = (
    # All threads, that of the backward pass among them, share what is free.
    (M_ARENA_MAX, 1),
    # Large blocks come from there, too.
    (M_MMAP_MAX, 0),
    (M_TRIM_THRESHOLD, 2**31 - 1),
)


def keep_freed_memory() -> bool:
    """Keep freed memory in this process from now on, in pages of 2 MiB where torch asks. Returns:
    whether it can.

    Call it before the first tensor. Another C library than glibc is left as it is.
    """
    # torch reads it once, when it first allocates.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(name, value) for name, value in SETTINGS])
