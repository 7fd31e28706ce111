"""Background delivery of items, in order, to a receiver that may be unavailable for a while."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

RETRY_S = 1.0
T = TypeVar("T")


class Deliveries(Generic[T]):
    """Queue whose `put` returns at once; a thread delivers the items, and lives while there are
    any.

    An outage stops the queue until the receiver is back. An item that the receiver refuses is
    recorded, and the next one is delivered.
    """

    def __init__(
        self, deliver: Callable[[T], object], is_outage: Callable[[Exception], bool]
    ) -> None:
        """Create the queue.

        Args: deliver: delivers one item. is_outage: returns True for an error of `deliver` that is
        temporary.
        """
        self._deliver, self._is_outage = deliver, is_outage
        self._waiting: deque[T] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._refusals: list[Exception] = []
        self._outage: Exception | None = None

    def put(self, item: T) -> None:
        """Queue `item` after everything before it; returns at once."""
        with self._changed:
            self._waiting.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deliveries", daemon=True)
                self._thread.start()

    def wait(self, patience_s: float) -> bool:
        """Wait until the queue is empty.

        Returns: False if nothing could be delivered for `patience_s`.
        """
        with self._changed:
            while self._waiting:
                if not self._changed.wait(patience_s):
                    return False
            return True

    def refusals(self) -> list[Exception]:
        """Return the errors of items refused since the last call."""
        with self._changed:
            found, self._refusals = self._refusals, []
            return found

    @property
    def outage(self) -> Exception | None:
        """Error of the current outage; None if the receiver answers."""
        return self._outage

    def __len__(self) -> int:
        """Return the number of items in the queue."""
        return len(self._waiting)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._deliver(item)
            except Exception as error:
                if self._is_outage(error):
                    self._outage = error
                    time.sleep(RETRY_S)
                    continue
                self._refusals.append(error)
            self._done()

    def _next(self) -> T | None:
        with self._changed:
            if self._waiting:
                return self._waiting[0]
            self._thread = None
            return None

    def _done(self) -> None:
        with self._changed:
            self._outage = None
            self._waiting.popleft()
            if not self._waiting:
                self._emptied()
            self._changed.notify_all()

    def _emptied(self) -> None:
        """Called whenever everything was delivered, with no `put` in between."""
