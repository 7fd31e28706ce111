"""Calls in forks of this process, so that a crash or a change of a library's state ends with the
fork."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

LIMIT_S = 60.0
"""Default time limit of a call, in seconds."""
SIBLINGS_S = 5.0
"""Time limit in seconds for a call that waits for another one that failed."""


@dataclass(frozen=True)
class Failed:
    """Failure of a call."""

    by_name: bool
    """True if the exception is one of the project's own, whose message says what is wrong."""
    kind: str
    """Class of the exception."""
    message: str
    """First line of the exception's message."""
    where: str = ""
    """Line of code that raised the exception."""

    def __str__(self) -> str:
        if self.by_name:
            return self.message
        return f"{self.kind}: {self.message}" + (f", in {self.where}" if self.where else "")


def tried(compute: Callable[[], T]) -> T | Failed:
    """Return the result of a function, or `Failed` if it raises."""
    from rl_core.errors import RLTrainError

    try:
        return compute()
    except Exception as error:
        message = (str(error).strip().splitlines() or [""])[0]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return Failed(isinstance(error, RLTrainError), type(error).__name__, message, where)


def apart(compute: Callable[..., T], *args: object, limit_s: float = LIMIT_S) -> T | Failed:
    """Return the result of a function in a fork, or `Failed` if it raises, crashes or hangs."""
    return together([(compute, args)], limit_s)[0]


def together(
    calls: Sequence[tuple[Callable[..., T], tuple[object, ...]]], limit_s: float = LIMIT_S
) -> list[T | Failed]:
    """Return the results of several functions in forks that run concurrently and may wait for each
    other."""
    context = multiprocessing.get_context("fork")
    running: list[tuple[BaseProcess, Connection]] = []
    for compute, args in calls:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(theirs, compute, args))
        process.start()
        theirs.close()
        running.append((process, mine))
    try:
        return _answers(running, time.monotonic() + limit_s)
    finally:
        for process, _ in running:
            process.kill()
            process.join()


def _answers(running: list[tuple[BaseProcess, Connection]], stop: float) -> list[Any]:
    answers: list[Any] = [Failed(False, "TimeoutError", "no answer in time")] * len(running)
    waiting = {pipe: place for place, (_, pipe) in enumerate(running)}
    while waiting and (ready := wait(list(waiting), max(0.0, stop - time.monotonic()))):
        for pipe in ready:
            assert isinstance(pipe, Connection)
            place = waiting.pop(pipe)
            try:
                answers[place] = pipe.recv()
            except EOFError:
                process = running[place][0]
                process.join()
                answers[place] = Failed(
                    False, "died", f"the process ended with exit code {process.exitcode}"
                )
            if isinstance(answers[place], Failed):
                stop = min(stop, time.monotonic() + SIBLINGS_S)
    return answers


def _answer(pipe: Connection, compute: Callable[..., object], args: tuple[object, ...]) -> None:
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    pipe.send(tried(lambda: compute(*args)))
    pipe.close()
    # Not by way of destructors, those of process groups among them.
    os._exit(0)
