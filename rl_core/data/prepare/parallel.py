"""Parallel map over a stream with all cores: results in order, few items in memory at a time."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def num_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered_map(
    function: Callable[[T], R], items: Iterable[T], num_threads: int = 0
) -> Iterator[R]:
    """Yield `function` of each item, in order; threads help if it releases the interpreter lock
    (Arrow, PIL, tokenizers).

    Args: num_threads: 0 means all cores. At any time one item more than there are threads is in
    memory.
    """
    num_threads = num_threads or num_cores()
    running: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(num_threads)
    try:
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) > num_threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
