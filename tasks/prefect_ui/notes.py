"""Notes about a run, passed from where they are noticed to the log of the task run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from rl_core.trainers.progress import ProgressEvent, listeners


def task_logger() -> Any:
    """Return the logger of the task run, or an ordinary one outside of any."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(__name__)


@contextmanager
def logged_notes() -> Iterator[None]:
    """Log every note that is announced inside the block as a warning."""
    logger = task_logger()

    def follow(event: ProgressEvent) -> None:
        if event.phase == "note":
            logger.warning(event.text)

    listeners.append(follow)
    try:
        yield
    finally:
        listeners.remove(follow)
