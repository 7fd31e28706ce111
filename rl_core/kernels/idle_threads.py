"""Threads of a CPU worker that sleep while they wait for each other.

Decoding is a chain of small operations, each spread over OpenMP's threads, which spin at the end of
each operation until the last one has come. Where another process has one of the cores, they spin
for a thread that does not run: 30 times 12 products with 64 rows of SmolLM2's sizes took 310
instead of 89 ms on two cores beside one busy process. Asleep they leave the core to that thread: 70
ms, and with nobody beside them no more. Which thread computes what is the same, and so is every
bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

POLICY = "OMP_WAIT_POLICY"
"""OpenMP reads this variable when it is loaded, hence before any import of torch."""
PASSIVE = {POLICY: "passive"}


@contextmanager
def sleeping_threads() -> Iterator[None]:
    """Let processes that are started in the block wait passively, unless the user chose how they
    wait."""
    if POLICY in os.environ:
        yield
        return
    os.environ.update(PASSIVE)
    try:
        yield
    finally:
        os.environ.pop(POLICY, None)
