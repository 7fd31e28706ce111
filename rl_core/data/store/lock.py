"""A lock next to an output folder that allows one builder at a time.

The lock is the operating system's, so it ends with its owner, however that ended, and no clock
decides about it. Its file says who holds it, for those who wait.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from rl_core.data.store.atomic import storage_error

FIRST_REPORT_S = 0.1
REPORT_EVERY_S = 10.0

Note = Callable[[str], None]


@contextmanager
def output_lock(path: Path, note: Note | None = None) -> Iterator[None]:
    """Hold the lock at `path` for the block; waits for whoever has it.

    Args: note: is told whom this waits for. Raises: StorageError when the file cannot be written.
    """
    lock, patience_s = FileLock(path, on_acquired=_sign), FIRST_REPORT_S
    while not lock.is_locked:
        try:
            lock.acquire(patience_s)
        except Timeout:
            if note is not None:
                note(f"waiting for {_owner(path)}")
            patience_s = REPORT_EVERY_S
        except OSError as error:
            raise storage_error(path, error) from error
    try:
        yield
    finally:
        lock.release()


def _sign(descriptor: int) -> None:
    """Write into the lock's file who holds it."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = f"process {os.getpid()} on {socket.gethostname()}, at work since {since}"
    # A full disk must not end a build because of what is only said to others.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode(), 0)


def _owner(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8") or "another process"
    return "another process"
