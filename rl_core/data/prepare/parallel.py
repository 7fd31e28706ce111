"""Work on a stream with all cores, results in the order of the stream, few items in memory at a time."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[[T], R], items: Iterable[T], num_threads: int = 0) -> Iterator[R]:
    """`function` of each item, in order; threads help where it releases the interpreter lock (Arrow, PIL, tokenizers).

    Args: num_threads: 0 means all cores. One item more than there are threads is in memory at any time.
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
