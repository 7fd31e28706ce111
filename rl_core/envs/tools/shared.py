"""Resources shared by the environments of one process, such as a pool of sandboxes: created for the
first user, closed with the last."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, Protocol, TypeVar


class Closeable(Protocol):
    """A resource that holds processes or connections."""

    def close(self) -> None:
        """Release the processes or connections."""
        ...


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Closeable)


class Lease(Generic[T]):
    """A share in a resource. Call `release` when done; a forgotten lease is released with its
    owner."""

    def __init__(self, value: T, give_back: Callable[[], None]) -> None:
        self.value = value
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """Release the share; the last release closes the resource. A second call does nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def __del__(self) -> None:
        self.release()


@contextmanager
def leased(shared: Shared[None, T]) -> Iterator[T]:
    """Lease the resource for the duration of the block."""
    lease = shared.lease(None)
    try:
        yield lease.value
    finally:
        lease.release()


class Shared(Generic[K, T]):
    """Resources by key, each alive as long as it is leased. Thread-safe."""

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make = make
        self._in_use: dict[K, tuple[T, int]] = {}
        self._lock = Lock()
        atexit.register(self.close)

    def lease(self, key: K) -> Lease[T]:
        """Lease the resource of `key`, which is created if nobody has it."""
        with self._lock:
            value, count = self._in_use.get(key) or (self._make(key), 0)
            self._in_use[key] = (value, count + 1)
        return Lease(value, lambda: self._give_back(key, value))

    def close(self) -> None:
        """Close all resources, leased or not."""
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
