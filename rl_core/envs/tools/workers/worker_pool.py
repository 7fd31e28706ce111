"""A few processes that answer requests with a hard deadline.

For libraries that cannot be interrupted from a thread. Other work in several processes goes through
`concurrent.futures`, which cannot end a worker that overruns before Python 3.14.
"""

from __future__ import annotations

import marshal
import os
import select
import subprocess
import sys
import time
from threading import BoundedSemaphore, Lock
from typing import Any, TypeAlias

from rl_core.envs.tools.workers import worker_main

START_TIMEOUT_S = 120.0
GRACE_S = 5.0
Payload: TypeAlias = tuple[str | float | None, ...]
"""The arguments of a worker's `answer`, in order."""


class WorkerOverran(Exception):
    """The request exceeded its time, or ended its process otherwise."""


class WorkerPool:
    """Processes that run `answer(payload)` of one file. Thread-safe; started when needed, replaced
    when they end."""

    def __init__(self, file: str, max_workers: int = 4) -> None:
        """Create the pool; no process starts yet.

        Args: file: a Python file that imports nothing of this project.
        """
        self.file = file
        self._slots = BoundedSemaphore(max_workers)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = Lock()

    def ask(self, payload: Payload, timeout_s: float) -> Any:
        """Return what the file's `answer` gives for a payload. Raises: WorkerOverran."""
        with self._slots:
            with self._lock:
                worker = self._idle.pop() if self._idle else _Worker(self.file)
                self._all.add(worker)
            try:
                answer = worker.ask(payload, timeout_s)
            except (OSError, EOFError) as error:
                self._forget(worker)
                raise WorkerOverran(f"no answer within {timeout_s:g} seconds") from error
            except BaseException:
                self._forget(worker)
                raise
            with self._lock:
                self._idle.append(worker)
            return answer

    def close(self) -> None:
        """End all processes, busy or idle."""
        with self._lock:
            workers, self._all, self._idle = self._all, set(), []
        for worker in workers:
            worker.close()

    def _forget(self, worker: _Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.close()


class _Worker:
    def __init__(self, file: str) -> None:
        self._is_fresh = True
        # -P: the files beside this one have names of the standard library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", worker_main.__file__, file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ask(self, payload: Payload, timeout_s: float) -> object:
        data = marshal.dumps((timeout_s, payload))
        deadline = time.monotonic() + timeout_s + (START_TIMEOUT_S if self._is_fresh else GRACE_S)
        self._is_fresh = False
        assert self._process.stdin is not None
        self._process.stdin.write(worker_main.LENGTH.pack(len(data)) + data)
        self._process.stdin.flush()
        head = self._read(worker_main.LENGTH.size, deadline)
        (length,) = worker_main.LENGTH.unpack(head)
        return marshal.loads(self._read(length, deadline))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        fd, data = self._process.stdout.fileno(), bytearray()
        while len(data) < size:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise EOFError
            part = os.read(fd, min(size - len(data), 2**20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)
