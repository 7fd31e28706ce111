"""Execution of one function on several jobs, one process each, or on a cluster instead.

A worker is a fresh interpreter that imports only what its function needs: it inherits no lock, no
thread and no open file, and the kernel ends it with the process that started it.
"""

import ctypes
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rl_core.errors import WorkerDied

Advance = Callable[[int], None]
"""Callback that receives the number of units of work done since the last call."""
Runner = Callable[[str, Sequence[Any], Advance], list[Any]]
"""Function that applies another function, named `pkg.module:function`, to jobs and returns the
results in order.

The applied function takes a job and an `Advance`. Jobs and results must be picklable.
"""

_ROOT = Path(__file__).resolve().parents[3]
_PR_SET_PDEATHSIG = 1


def num_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def run_here(function: str, jobs: Sequence[Any], advance: Advance) -> list[Any]:
    """Run the jobs one after the other in this process, for work that is too small to
    distribute."""
    call = named_function(function)
    return [call(job, advance) for job in jobs]


def named_function(function: str) -> Callable[[Any, Advance], Any]:
    """Return the function named `pkg.module:function`."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def run_in_processes(function: str, jobs: Sequence[Any], advance: Advance) -> list[Any]:
    """Run each job in a separate process, as many concurrently as there are cores; a single one
    runs here.

    Raises: the error of a job; WorkerDied when a worker ends without an answer.
    """
    if len(jobs) <= 1:
        return run_here(function, jobs, advance)
    # A thread starts its worker and outlives it: the kernel ends a worker with the thread that started it.
    with ThreadPoolExecutor(num_cores()) as pool:
        waiting = [pool.submit(_run_one, function, job, advance) for job in jobs]
        try:
            return [one.result() for one in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_one(function: str, job: Any, advance: Advance) -> Any:
    worker = _Worker(function, job, advance)
    try:
        return worker.result()
    finally:
        worker.end()


class _Worker:
    """A process that runs one job, and the thread that reads its output."""

    def __init__(self, function: str, job: Any, advance: Advance) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, sys.path)])}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rl_core.data.prepare.workers", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._advance = advance
        self._outcome: tuple[str, Any] | None = None
        self._thread = threading.Thread(target=self._talk, args=(pickle.dumps((function, job)),), daemon=True)
        self._thread.start()

    def _talk(self, order: bytes) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(order)
            self._process.stdin.close()
            while self._outcome is None:
                kind, value = pickle.load(self._process.stdout)
                if kind == "advance":
                    self._advance(value)
                else:
                    self._outcome = (kind, value)
        except (OSError, EOFError, pickle.UnpicklingError):
            return  # the process is gone; `result` says so

    def result(self) -> Any:
        self._thread.join()
        if self._outcome is None:
            code = self._process.wait()
            raise WorkerDied(f"a preparation worker ended with exit code {code} before its work was done")
        kind, value = self._outcome
        if kind == "error":
            raise value
        return value

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._thread.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _serve(parent: int) -> None:
    """Run the worker's side: read one job from stdin, write progress and result to stdout."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Whatever a library prints must not get between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(kind: str, value: Any) -> None:
        pickle.dump((kind, value), answers)
        answers.flush()

    function, job = pickle.load(sys.stdin.buffer)
    call = named_function(function)
    try:
        send("result", call(job, lambda count: send("advance", count)))
    except Exception as error:  # raised again by the caller
        send("error", error)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
