"""Allocator settings of a CPU process: memory freed by tensors stays in the process for the next
ones.

By default the C library returns large blocks to the system at once, which has to clear every page
before it hands it out again, and keeps fragments in many arenas.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# Parameter numbers from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8
SETTINGS = (
    # All threads, including that of the backward pass, share one arena.
    (M_ARENA_MAX, 1),
    # Large blocks come from that arena, too.
    (M_MMAP_MAX, 0),
    (M_TRIM_THRESHOLD, 2**31 - 1),
)

BLOCK = 2**20
"""Bytes of an allocation that is given back while a model is loaded."""
DEFAULT_MMAP_MAX, LARGEST_MMAP_THRESHOLD = 65536, 2**25
"""glibc's own settings; the threshold grows to that of the largest block that was freed."""
_kept: list[bool] = []
"""Not empty once `keep_freed_memory` has been called."""
_given_back: list[bool] = []
"""Not empty within `freed_memory_given_back`, which may be entered again there."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process from now on, in pages of 2 MiB for torch's large blocks.
    Returns: True if the C library supports it.

    Call it before the first tensor. C libraries other than glibc stay as they are.
    """
    # torch reads this once, at its first allocation.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    _kept.append(True)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all([mallopt(name, value) for name, value in SETTINGS])


@contextmanager
def freed_memory_given_back() -> Iterator[None]:
    """Give large blocks back to the system as soon as they are freed, during the block.

    For phases of many large tensors that never come back in the same sizes, such as the load of a
    model layer by layer: aligned blocks are seldom reused (glibc before 2.38 finds no place of the
    exact size), so that the process would end with another copy of the model in fragments.
    """
    library = ctypes.CDLL(None)
    mallopt = getattr(library, "mallopt", None)
    if mallopt is None or _given_back:
        yield
        return
    _given_back.append(True)
    mallopt(M_MMAP_MAX, DEFAULT_MMAP_MAX)
    mallopt(M_MMAP_THRESHOLD, BLOCK)
    try:
        yield
    finally:
        _given_back.clear()
        mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        if _kept:
            mallopt(M_MMAP_MAX, 0)
        library.malloc_trim(0)
