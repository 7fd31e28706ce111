"""What environments of one process share, such as a pool of sandboxes: made for the first, ended with the last."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Closeable(Protocol):
    """Something that holds processes or connections."""

    def close(self) -> None:
        """Let them go."""
        ...


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Closeable)


class Lease(Generic[T]):
    """A share in a resource. `release` it once done; a forgotten one is released with its owner."""

    def __init__(self, value: T, give_back: Callable[[], None]) -> None:
        self.value = value
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """Give the share back; the last one closes the resource. A second call does nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __del__(self) -> None:
        self.release()


@contextmanager
def leased(shared: Shared[None, T]) -> Iterator[T]:
    """The resource, for a moment."""
    lease = shared.lease(None)
    try:
        yield lease.value
    finally:
        lease.release()


class Shared(Generic[K, T]):
    """Resources by key, each alive while somebody leases it. Thread-safe."""

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make
        self._in_use: dict[K, tuple[T, int]] = {}
        self._lock = Lock()
        atexit.register(self.close)

    def lease(self, key: K) -> Lease[T]:
        """A share in the resource of `key`, which is made if nobody has it."""
        with self._lock:
            value, count = self._in_use.get(key) or (self._make(key), 0)
            self._in_use[key] = (value, count + 1)
        return Lease(value, lambda: self._give_back(key, value))

    def close(self) -> None:
        """Close all of them, whoever still leases one."""
        with self._lock:
            values, self._in_use = [value for value, _ in self._in_use.values()], {}
        for value in values:
            value.close()

    def _give_back(self, key: K, value: T) -> None:
        with self._lock:
            current, count = self._in_use.get(key, (None, 0))
            if current is not value:
                return
            if count > 1:
                self._in_use[key] = (value, count - 1)
                return
            del self._in_use[key]
        value.close()
