"""A lock next to an output folder that allows one builder at a time.

The lock is the operating system's (`flock`), so it ends with its owner, however that ended, and
does not depend on clocks. The file names the holder (pid, host, start, heartbeat) for those who
wait. The heartbeat is a counter, which a waiter times by its own monotonic clock, so that clock
changes have no effect.
"""

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from rl_core.data.store.atomic import storage_error

HEARTBEAT_S = 1.0
POLL_S = 0.02
REPORT_EVERY_S = 10.0
SILENT_AFTER_S = 10 * HEARTBEAT_S

Note = Callable[[str], None]
_held: set[int] = set()


def _forget_in_child() -> None:
    """Close a forked child's copies of the descriptors, so that it does not keep its parent's lock
    alive."""
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)


@dataclass(frozen=True)
class Owner:
    """Present or last holder of a lock."""

    pid: int
    host: str
    started_at: str
    heartbeats: int
    released: bool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, at work since {self.started_at}"


def read_owner(path: Path) -> Owner | None:
    """Read the holder from the lock file, or return None if nobody has written it."""
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class OutputLock:
    """Hold the lock at `path` for a `with` block, after waiting for its holder.

    Args: note: receives a message about whom this waits for. Raises: StorageError when the lock
    file cannot be written.
    """

    def __init__(self, path: Path, note: Note | None = None) -> None:
        self.path = path
        self.left_by: Owner | None = None
        """Former holder that ended without releasing the lock."""
        self._note = note or (lambda _text: None)
        self._stop = threading.Event()
        self._descriptor = -1
        self._beats: threading.Thread | None = None

    def __enter__(self) -> "OutputLock":
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _held.add(self._descriptor)
            self._wait()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise storage_error(self.path, error) from error
            raise
        former = read_owner(self.path)
        self.left_by = former if former is not None and not former.released else None
        self._owner: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._write(heartbeats=0, released=False)
        self._beats = threading.Thread(target=self._beat, name=f"heartbeat {self.path.name}", daemon=True)
        self._beats.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._beats is not None:
            self._beats.join()
        self._write(heartbeats=0, released=True)
        self._close()

    def _wait(self) -> None:
        """Take the lock, and report every few seconds whom this waits for."""
        seen, seen_at, report_at = None, time.monotonic(), time.monotonic() + POLL_S
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            now, owner = time.monotonic(), read_owner(self.path)
            if owner != seen:
                seen, seen_at = owner, now
            if owner is not None and now >= report_at:
                silent = now - seen_at
                hint = f"; no sign of life for {silent:.0f} s" if silent > SILENT_AFTER_S else ""
                self._note(f"waiting for {owner}{hint}")
                report_at = now + REPORT_EVERY_S
            time.sleep(POLL_S)

    def _beat(self) -> None:
        count = 0
        while not self._stop.wait(HEARTBEAT_S):
            count += 1
            self._write(heartbeats=count, released=False)

    def _write(self, *, heartbeats: int, released: bool) -> None:
        text = json.dumps({**self._owner, "heartbeats": heartbeats, "released": released}) + "\n"
        # A full disk must not end a build because of what is only said to others.
        with suppress(OSError):
            os.pwrite(self._descriptor, text.encode(), 0)
            os.ftruncate(self._descriptor, len(text.encode()))

    def _close(self) -> None:
        if self._descriptor >= 0:
            _held.discard(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
