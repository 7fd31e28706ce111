"""Notes about a run, passed from where they are noticed to the log of the task run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

from rl_core.trainers.progress import ProgressEvent, listeners


@contextmanager
def logged_notes() -> Iterator[None]:
    """Log every note that is announced inside the block as a warning."""
    try:
        logger = get_run_logger()
    except MissingContextError:
        logger = logging.getLogger(__name__)

    def follow(event: ProgressEvent) -> None:
        if event.phase == "note":
            logger.warning(event.text)

    listeners.append(follow)
    try:
        yield
    finally:
        listeners.remove(follow)
