"""The same function over several jobs, in processes, or on a cluster in their place.

A worker is a fresh interpreter: it inherits no lock, no thread and no open file, and the kernel
ends it with the process that started it.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from rl_core.errors import WorkerDied

Advance = Callable[[int], None]
"""Callback that receives the number of units of work done since the last call."""
Runner = Callable[[str, Sequence[object], Advance], list[Any]]
"""Function that applies another function, named `pkg.module:function`, to jobs and returns the
results in order.

The applied function takes a job and an `Advance`. Jobs and results must be picklable.
"""

_PR_SET_PDEATHSIG = 1
_progress: Connection | None = None
"""Connection on which a worker reports its progress; None outside of workers."""


def num_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def run_here(function: str, jobs: Sequence[object], advance: Advance) -> list[object]:
    """Run the jobs one after the other in this process, for work that is too small to
    distribute."""
    call = named_function(function)
    return [call(job, advance) for job in jobs]


def named_function(function: str) -> Callable[[object, Advance], object]:
    """Return the function named `pkg.module:function`."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def run_in_processes(function: str, jobs: Sequence[object], advance: Advance) -> list[object]:
    """Each job in another process, as many at once as there are cores; a single one runs here.

    Raises: the error of a job; WorkerDied when a worker ends without an answer.
    """
    if len(jobs) <= 1:
        return run_here(function, jobs, advance)
    context = multiprocessing.get_context("spawn")
    # A pipe, since a process that is killed while it writes into a queue leaves it locked.
    said, progress = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        min(len(jobs), num_cores()), context, initializer=_start, initargs=(progress, os.getpid())
    )
    listener = Thread(target=_listen, args=(said, advance), daemon=True)
    listener.start()
    try:
        with pool:
            waiting = [pool.submit(_work, function, job) for job in jobs]
            try:
                return [one.result() for one in waiting]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    except BrokenProcessPool as error:
        raise WorkerDied("a preparation worker ended before its work was done") from error
    finally:
        progress.send(None)
        listener.join()
        progress.close()
        said.close()


def _listen(said: Connection, advance: Advance) -> None:
    while (count := said.recv()) is not None:
        advance(count)


def _start(progress: Connection, parent: int) -> None:
    """Set up a worker before its first job: it ends when its parent does."""
    global _progress
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _progress = progress


def _work(function: str, job: object) -> object:
    """Run one job in a worker."""
    assert _progress is not None
    # A few bytes are written at once, so that workers need no lock.
    return named_function(function)(job, _progress.send)
