"""Output of workers, line by line with rank and role, in the log of the process that called them.

A worker's streams put `[rank 1 Stack-0.train] ` before every line. Ray carries the lines to the
driver, to a thread of Ray's; they are logged by `forward`, on the thread that waits for the call,
since a log determines the run from the thread. Lines without that mark come from libraries below
Python; Ray keeps them in files.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TextIO, TypedDict

logger = logging.getLogger("rl_core.workers")
# Prefect attaches its handler to `rl_core` and leaves the level, which would be the root's:
# warnings alone.
logger.setLevel(logging.INFO)

MAX_LINES = 200
"""Maximum number of lines logged at once, so that a worker that prints too much does not flood the
log."""
HANDLER = "rl-train"
RAYS_HANDLER = "ray_print_logs"
_MARKED = re.compile(r"\[rank \d+(?: [^\]]+)?\] ")
_PROGRESS_BAR = re.compile(r"\d+%\|")
_lines: SimpleQueue[str] = SimpleQueue()


class LogBatch(TypedDict, total=False):
    """Lines of a worker's output, as Ray's dispatcher hands them over."""

    lines: list[str]


class Labelled:
    """Text stream that marks every line.

    Args: label: returns what the process is doing, called for each line.
    """

    def __init__(self, stream: TextIO, label: Callable[[], str]) -> None:
        self._stream, self._label = stream, label
        self._rest = ""

    def write(self, text: str) -> int:
        """Write whole lines; keep the rest until its end arrives. Progress bars are left out."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            shown = line.rpartition("\r")[2].rstrip()
            if shown and not _PROGRESS_BAR.search(shown):
                self._stream.write(f"[{self._label()}] {shown}\n")
        if lines:
            self._stream.flush()
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def label_output(label: Callable[[], str]) -> None:
    """Mark the output of this process from now on."""
    sys.stdout, sys.stderr = Labelled(sys.stdout, label), Labelled(sys.stderr, label)


@contextmanager
def collected_output() -> Iterator[None]:
    """Take the output of workers from Ray, which would print it to this process's own output, for
    `forward`."""
    # Ray has no public way to what its workers print; the same dispatcher serves its notebooks.
    # This can go when `ray.init` takes a handler.
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

    dispatcher.remove_handler(RAYS_HANDLER)
    dispatcher.add_handler(HANDLER, collect)
    try:
        yield
    finally:
        dispatcher.remove_handler(HANDLER)
        forward()


def collect(batch: LogBatch) -> None:
    """Keep a batch of lines until `forward`."""
    for line in batch.get("lines", ()):
        if _MARKED.match(line):
            _lines.put(line)


def forward() -> None:
    """Log the output of workers since the last call."""
    for _ in range(MAX_LINES):
        try:
            logger.info("%s", _lines.get_nowait())
        except Empty:
            return
    left = _lines.qsize()
    while not _lines.empty():
        _lines.get()
    if left:
        logger.warning("%d more lines of workers are in Ray's log files alone", left)
