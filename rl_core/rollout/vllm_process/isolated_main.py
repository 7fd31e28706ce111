"""The body of a process that runs another interpreter, for packages whose pins conflict with this
project's.

It builds one object there and calls its methods. Its imports must exist in both environments, so
this module and those of the classes it builds only use the standard library until they are called.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl_core.errors import RLTrainError


@dataclass(frozen=True)
class Trouble:
    """An error on its way out of the isolated process: third-party exceptions may not exist outside
    of it."""

    summary: str
    """Type and message of the error."""
    traceback: str
    error: RLTrainError | None
    """The error itself, if it is one of the project's."""
    timed_out: bool
    """True if a process that this one had started did not answer."""


class IsolatedObject:
    """Holder of one object for a caller with another interpreter.

    Args: environment: variables to set first.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        os.environ.update(environment)
        self._object: Any = None

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def build(self, cls: type[Any], args: tuple[Any, ...]) -> Trouble | None:
        """Build the object."""

        def make() -> None:
            self._object = cls(*args)

        return _attempt(make)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method of the object. Returns: its answer, or the Trouble."""
        return _attempt(lambda: getattr(self._object, method)(*args))


def _attempt(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # whatever it is, the caller raises it
        own = error if isinstance(error, RLTrainError) else None
        summary = "".join(traceback.format_exception_only(error)).strip()
        timed_out = isinstance(error, TimeoutError)
        return Trouble(summary, traceback.format_exc(), own, timed_out)
