"""Calls in forks of this process: what one breaks, or leaves behind in a library, is gone with
it."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
"""Of a call, unless told otherwise."""
SIBLINGS_S = 5.0
"""For a call that waits for another one, which failed."""


@dataclass(frozen=True)
class Failed:
    """How a call ended that gave nothing."""

    by_name: bool
    """Whether by an error of ours, which says what is wrong."""
    kind: str
    """The error's class."""
    message: str
    """Its first line."""
    where: str = ""
    """The line of code that raised it."""

    def __str__(self) -> str:
        if self.by_name:
            return self.message
        return f"{self.kind}: {self.message}" + (f", in {self.where}" if self.where else "")


def tried(compute: Callable[[], Any]) -> Any:
    """What it gives; `Failed` where it raises."""
    from rl_core.errors import RLTrainError

    try:
        return compute()
    except Exception as error:
        message = (str(error).strip().splitlines() or [""])[0]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return Failed(isinstance(error, RLTrainError), type(error).__name__, message, where)


def apart(compute: Callable[..., Any], *args: Any, limit_s: float = LIMIT_S) -> Any:
    """What a function gives in a fork; `Failed` where it raises, dies or hangs."""
    return together([(compute, args)], limit_s)[0]


def together(
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]], limit_s: float = LIMIT_S
) -> list[Any]:
    """The same for several that run at once, and may wait for each other."""
    context = multiprocessing.get_context("fork")
    running: list[tuple[Any, Connection]] = []
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


def _answers(running: list[tuple[Any, Connection]], stop: float) -> list[Any]:
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


def _answer(pipe: Connection, compute: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    pipe.send(tried(lambda: compute(*args)))
    pipe.close()
    # Not by way of destructors, those of process groups among them.
    os._exit(0)
