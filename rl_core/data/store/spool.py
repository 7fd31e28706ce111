"""Rows kept in a temporary file instead of memory, for files that can only be read from front to
back."""

import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Iterable
from typing import Any, TypeVar

from rl_core.data.store.atomic import storage_error
from rl_core.data.store.views import View

T = TypeVar("T")


class Spool(View[T]):
    """Values in the order in which they were added, read back on access; memory holds eight bytes
    of each.

    The file has no name, so it goes with its owner. It lies where `TMPDIR` says. Raises:
    StorageError when there is no room.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        # Closed with its owner, who need not know that there is a file.
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])
        self._written = True

    def __len__(self) -> int:
        return len(self._ends) - 1

    @classmethod
    def of(cls, values: Iterable[T]) -> "Spool[T]":
        """Return a spool of some values."""
        spool = cls()
        for value in values:
            spool.append(value)
        return spool

    def append(self, value: T) -> None:
        """Add a value."""
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        try:
            self._file.write(data)
        except OSError as error:
            raise storage_error(tempfile.gettempdir(), error) from error
        self._ends.append(self._ends[-1] + len(data))
        self._written = False

    def item(self, place: int) -> T:
        try:
            if not self._written:
                self._file.flush()
                self._written = True
        except OSError as error:
            raise storage_error(tempfile.gettempdir(), error) from error
        start, end = self._ends[place], self._ends[place + 1]
        # Written by this process, into a file that nobody else can open.
        return pickle.loads(os.pread(self._file.fileno(), end - start, start))

    def __reduce__(self) -> tuple[Any, tuple[list[T]]]:
        """Send the values: the file has no name by which another process could open it."""
        return Spool.of, (list(self),)
