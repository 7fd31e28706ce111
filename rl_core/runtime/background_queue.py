"""Handing things over in order, in the background, to a receiver that may be away for a while."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

RETRY_S = 1.0
T = TypeVar("T")


class Deliveries(Generic[T]):
    """Whoever has something to hand over goes on at once; a thread delivers, and lives while there is something left.

    An outage stops the queue until the receiver is back. What it refuses is noted, and the next item has its turn.
    """

    def __init__(self, deliver: Callable[[T], object], is_outage: Callable[[Exception], bool]) -> None:
        """Args: deliver: hands one item over. is_outage: whether an error of `deliver` passes with time."""
        self._deliver, self._is_outage = deliver, is_outage
        self._waiting: deque[T] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._refusals: list[Exception] = []
        self._outage: Exception | None = None

    def put(self, item: T) -> None:
        """Hand `item` over after everything before it; returns at once."""
        with self._changed:
            self._waiting.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deliveries", daemon=True)
                self._thread.start()

    def wait(self, patience_s: float) -> bool:
        """Wait until nothing is left. Returns: False when for `patience_s` nothing could be delivered."""
        with self._changed:
            while self._waiting:
                if not self._changed.wait(patience_s):
                    return False
            return True

    def refusals(self) -> list[Exception]:
        """What was refused since the last call."""
        with self._changed:
            found, self._refusals = self._refusals, []
            return found

    @property
    def outage(self) -> Exception | None:
        """Why the receiver does not answer at present; None when it does."""
        return self._outage

    def __len__(self) -> int:
        """How many items wait."""
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
        """Called, with no `put` in between, whenever everything was delivered."""
