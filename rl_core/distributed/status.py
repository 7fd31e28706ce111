"""Status of a worker, available while it is busy: a thread of the worker answers on a socket.

A Ray actor answers nothing while its method runs, and methods stay on the main thread because
timeouts of scorers use signals. The answer is one JSON object; a caller without the worker's token
gets none.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass

from rl_core.ranks.meeting_store import bound_socket

TIMEOUT_S = 3.0
TOKEN_BYTES = 16


@dataclass(frozen=True)
class Status:
    """Status of a worker at one moment."""

    method: str
    """Method on the main thread, as `Role.method`; empty if idle."""
    seconds: float
    """Seconds since the method started."""
    place: str
    """Innermost line of the method, as `file:line function`."""


class StatusServer:
    """Server that answers with the status of this process's main thread until the process ends."""

    def __init__(self, host: str) -> None:
        """Start it. Args: host: IP address to listen on."""
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        self._method, self._since = "", time.monotonic()
        self._socket = bound_socket(host)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, name="status", daemon=True).start()

    @property
    def method(self) -> str:
        """Method on the main thread; empty if idle."""
        return self._method

    def begin(self, method: str) -> None:
        """Record that the main thread starts `method`."""
        self._method, self._since = method, time.monotonic()

    def end(self) -> None:
        """Record that the main thread is idle again."""
        self.begin("")

    def status(self) -> Status:
        # Python has no other way to see where another thread is; it is documented in `sys`.
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        stack = traceback.extract_stack(frame, limit=None) if frame is not None else []
        place = f"{stack[-1].filename}:{stack[-1].lineno} {stack[-1].name}" if stack else ""
        return Status(self._method, time.monotonic() - self._since, place)

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            # A caller that went away, or said nothing in time, is no concern of the worker.
            with suppress(OSError), connection:
                connection.settimeout(TIMEOUT_S)
                if connection.recv(TOKEN_BYTES, socket.MSG_WAITALL) == self.token.encode():
                    connection.sendall(json.dumps(asdict(self.status())).encode())


def ask(host: str, port: int, token: str) -> Status | None:
    """Return the status of a worker; None if it does not answer within three seconds (stopped,
    swapped out, gone)."""
    try:
        with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
            connection.sendall(token.encode())
            answer = b""
            while part := connection.recv(4096):
                answer += part
        return Status(**json.loads(answer))
    except (OSError, ValueError):
        return None
