"""Settings of this process that a run changes, put back when it has ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OF_A_RUN = (
    "PYTHONBREAKPOINT",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "TQDM_DISABLE",
)
"""Environment variables of a run alone: Ray puts its own debugger in the place of `breakpoint()`,
and the display of a run silences other packages."""


@contextmanager
def process_kept() -> Iterator[None]:
    """Give the process its own signal handlers, debugger and progress bars back after the block.

    The addresses of the home and of its Prefect API stay, for the next run of the process.
    """
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    shown = {name: os.environ.get(name) for name in OF_A_RUN}
    try:
        yield
    finally:
        for one, handler in handlers.items():
            if handler is not None:  # one that was not set from Python cannot be set again
                signal.signal(one, handler)
        for name, value in shown.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
