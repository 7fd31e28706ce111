"""The processes in which environments are built, each replaced when a row ends it."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from threading import BoundedSemaphore, Lock

from rl_core.envs.trials import child
from rl_core.envs.trials.building import PLAY_TIMES
from rl_core.envs.trials.settings import Finding, Trial, TrialSettings, Verdict
from rl_core.errors import WorkerDied

MAX_LOST = 3
"""Rows of one environment that may end a process; its further rows are refused unseen."""
GRACE_S = 5.0
"""Seconds after a deadline until a process that did not end itself is ended from outside."""


class TrialPool:
    """Processes that build environments. Thread-safe; a process starts when it is first needed."""

    def __init__(self, settings: TrialSettings, max_workers: int) -> None:
        self.settings = settings
        self._slots = BoundedSemaphore(max_workers)
        self._idle: list[_Worker] = []
        self._lost: Counter[str] = Counter()
        self._why_lost: dict[str, str] = {}
        self._lock = Lock()

    def findings(self, trials: Sequence[Trial]) -> list[Finding]:
        """Return what is wrong with some rows, in their order. Raises: WorkerDied when no process
        can be started."""
        if not trials:
            return []
        with self._slots:
            return sorted(self._findings(trials, 0), key=lambda finding: finding.index)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            workers, self._idle = self._idle, []
        for worker in workers:
            worker.close()

    def _findings(self, trials: Sequence[Trial], offset: int) -> list[Finding]:
        sent = [i for i, trial in enumerate(trials) if self._lost[trial.env_class] < MAX_LOST]
        found = []
        for i, trial in enumerate(trials):
            if self._lost[trial.env_class] >= MAX_LOST:
                found.append(Finding(offset + i, Verdict.REFUSED, self._why_lost[trial.env_class]))
        if not sent:
            return found
        answer = self._ask([trials[i] for i in sent])
        if not isinstance(answer, _Lost):
            return found + [replace(one, index=offset + sent[one.index]) for one in answer]
        # The findings about the rows before it were lost with the process.
        at = sent[answer.index]
        name = trials[at].env_class
        with self._lock:
            self._lost[name] += 1
            self._why_lost[name] = answer.why
        lost = Finding(offset + at, Verdict.REFUSED, answer.why)
        before = self._findings(trials[:at], offset) if at else []
        return [*before, lost, *self._findings(trials[at + 1 :], offset + at + 1)]

    def _ask(self, trials: Sequence[Trial]) -> list[Finding] | _Lost:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or _Worker(self.settings)
        try:
            answer = worker.ask(trials)
        except BaseException:
            worker.close()
            raise
        if isinstance(answer, _Lost):
            worker.close()
        else:
            with self._lock:
                self._idle.append(worker)
        return answer


class _Lost:
    """A process that ended at a row."""

    def __init__(self, index: int, why: str) -> None:
        self.index, self.why = index, why


class _Worker:
    def __init__(self, settings: TrialSettings) -> None:
        self._timeout_s = settings.timeout_s
        # Closed in `close`, with the process.
        self._progress = tempfile.TemporaryFile()  # noqa: SIM115
        self._progress.write(child.POSITION.pack(-1))
        self._progress.flush()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        fd = self._progress.fileno()
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            # -P: the files beside this one have names of the standard library.
            [sys.executable, "-P", child.__file__, str(fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            pass_fds=(fd,),
            start_new_session=True,
        )
        self._setup = [[path or os.getcwd() for path in sys.path], settings]

    def ask(self, trials: Sequence[Trial]) -> list[Finding] | _Lost:
        """Return the findings about some rows, or the row that ended the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._note(-1)
        # Plain tuples pickle twice as fast as trials, which matters with many rows.
        try:
            for message in (
                *self._setup,
                [(one.env_class, one.extras, one.prompt) for one in trials],
            ):
                pickle.dump(message, self._process.stdin)
            self._setup = []
            self._process.stdin.flush()
            self._wait(trials)
            return pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            return self._lost()

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # What could not be written to a process that ended is of no interest.
                try:
                    pipe.close()
                except OSError:
                    continue
        self._process.wait()
        self._progress.close()
        self._stderr.close()

    def _wait(self, trials: Sequence[Trial]) -> None:
        """Wait for the answer's first byte; end the process when it stays at one row for too
        long."""
        assert self._process.stdout is not None
        rounds = PLAY_TIMES if any(trial.prompt is not None for trial in trials) else 1
        patience = self._timeout_s * rounds + GRACE_S
        seen = self._position()
        while not select.select([self._process.stdout], [], [], patience)[0]:
            if seen == (seen := self._position()):
                self._process.kill()
                return

    def _lost(self) -> _Lost:
        code, index = self._process.wait(), self._position()
        if index < 0:
            self._stderr.seek(0)
            said = self._stderr.read()[-500:].decode(errors="replace").strip()
            raise WorkerDied(f"a process that builds environments ended at once ({code}): {said}")
        if code in (-14, -9):
            return _Lost(index, f"building it took longer than {self._timeout_s:g} s")
        return _Lost(index, f"building it ended its process (exit code {code})")

    def _position(self) -> int:
        data = os.pread(self._progress.fileno(), child.POSITION.size, 0)
        return child.POSITION.unpack(data)[0]

    def _note(self, index: int) -> None:
        os.pwrite(self._progress.fileno(), child.POSITION.pack(index), 0)
