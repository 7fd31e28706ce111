"""One service: its start, its health check, and the record by which a later command finds it
again."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from rl_core.errors import ServiceError
from rl_core.runtime.process_record import find_process, start_time, stop_tree

START_S = 300.0
PATIENCE_S = 60.0
"""Seconds that a busy machine may keep a healthy service from answering."""
POLL_S = 0.3
LOG_LINES = 15
_started: list[subprocess.Popen[bytes]] = []
"""Started processes, kept because Python warns about unreferenced ones; services are meant to
outlive their starter."""


class Record(BaseModel):
    """A started service, as stored in `services.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int
    started: float
    """Start time of its process, by `start_time`."""
    url: str
    log: str

    @property
    def process(self) -> psutil.Process | None:
        """The running process; None if it has ended."""
        return find_process(self.pid, self.started)


class State(StrEnum):
    """State of a service."""

    RUNNING = "running"
    """The process runs and answers."""
    SILENT = "silent"
    """The process runs but does not answer."""
    STOPPED = "stopped"
    """There is no process."""


@dataclass(frozen=True)
class Service:
    """Definition of a service that can be started."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    url: str
    """Address for people and programs; for a worker, the page that shows its runs."""
    answers: Callable[[], bool]
    prepare: Callable[[], object] = lambda: None
    """Function that is called before a start."""

    def start(self, folder: Path, log: Path) -> Start:
        """Start the service in a separate session. It may not answer yet."""
        self.prepare()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*self.command],
                cwd=folder,
                env=os.environ | dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _started.append(process)
        started = start_time(psutil.Process(process.pid))
        record = Record(pid=process.pid, started=started, url=self.url, log=str(log))
        return Start(self, process, record)

    def answers_soon(self) -> bool:
        """Return True if the service answers within `PATIENCE_S`."""
        end = time.monotonic() + PATIENCE_S
        while not self.answers():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True

    def state(self, record: Record | None) -> State:
        """Return the state of a recorded service."""
        if record is None or record.process is None:
            return State.STOPPED
        if self.answers_soon():
            return State.RUNNING
        return State.SILENT


@dataclass(frozen=True)
class Start:
    """A service that was started, and may not answer yet."""

    service: Service
    process: subprocess.Popen[bytes]
    record: Record

    def wait(self) -> Record:
        """Return the record once the service answers.

        Raises: ServiceError with the end of its log when it ends or stays silent; then nothing of
        it runs.
        """
        try:
            self._await(Path(self.record.log))
        except BaseException:
            if found := self.record.process:
                stop_tree(found)
            raise
        return self.record

    def _await(self, log: Path) -> None:
        end = time.monotonic() + START_S
        while not self.service.answers():
            if self.process.poll() is not None:
                raise ServiceError(
                    f"{self.service.name} ended with code {self.process.returncode}; {_end_of(log)}"
                )
            if time.monotonic() > end:
                raise ServiceError(
                    f"{self.service.name} does not answer after {START_S:.0f} s; {_end_of(log)}"
                )
            time.sleep(POLL_S)


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    return f"the end of {log}:\n" + "\n".join(lines)
