"""The mark in a stored run of the driver that works on it: locks are of one machine, and two
machines could write the same run.

Whoever opens the run last has it. An earlier driver finds another mark before it stores anything
more, and ends.
"""

from __future__ import annotations

import json
import socket
import uuid
from datetime import UTC, datetime
from pathlib import Path

from rl_core.data.store.atomic import atomic_write_text
from rl_core.errors import StorageError
from rl_core.runtime.storage import RemoteFolder

FILE = ".driver"
"""File of a run folder and object of its store; the driver is the one where both are the same."""


class Claim:
    """Mark of the driver of one stored run."""

    def __init__(self, local: Path, remote: RemoteFolder) -> None:
        self._local, self._remote = local, remote

    def take(self) -> str | None:
        """Become the driver. Returns: a sentence about the driver that this one replaces, if that
        was on another machine or in another home. Raises: StorageError, Unreachable."""
        before, own = self._stored(), self._own()
        since = datetime.now(UTC).isoformat(timespec="seconds")
        mark = json.dumps({"host": socket.gethostname(), "since": since, "id": uuid.uuid4().hex})
        self._remote.write(FILE, mark.encode())
        atomic_write_text(self._local / FILE, mark)
        if before in ("", own):
            return None
        return (
            f"{self._remote}: {_said(before)} before; if that still runs, it ends before it stores "
            "anything more"
        )

    def check(self) -> None:
        """Check that no other driver has come. Raises: StorageError naming it; Unreachable."""
        stored = self._stored()
        if stored != self._own():
            other = _said(stored) if stored else "the run was removed there"
            raise StorageError(
                f"{self._remote}: {other}, after this process opened it; nothing more is stored "
                "from here. Let one go on; the same command continues the run"
            )

    def _stored(self) -> str:
        return self._remote.read(FILE).decode() if self._remote.exists(FILE) else ""

    def _own(self) -> str:
        path = self._local / FILE
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def _said(mark: str) -> str:
    try:
        values = json.loads(mark)
        return f"{values['host']} took this run at {values['since']}"
    except (ValueError, KeyError, TypeError):
        return "another driver took this run"
