"""Copies of a run's metrics for trackers next to MLflow, each value once.

After a crash the steps since the last checkpoint are trained again, and a tracker would draw them
twice. So a file in the run's folder lists the names that each tracker has got for each step, and
these are skipped.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from rl_core.tracking.keys import stored_key

Trouble = Callable[[str, Exception], None]
"""Called once with the name of a tracker that failed, and its error."""


class TrackerRun(Protocol):
    """One run in a tracker."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Store finite metrics of a step; a kill of this process a moment later loses none."""
        ...

    def finish(self, *, succeeded: bool) -> None:
        """End the run."""
        ...


class Copies:
    """The trackers of a run, and the record of what they have.

    Args: trackers: by name. record: file that lists what was sent. trouble: told of a tracker that
    fails; it gets nothing more.
    """

    def __init__(self, trackers: Mapping[str, TrackerRun], record: Path, trouble: Trouble) -> None:
        self._trackers = dict(trackers)
        self._record, self._trouble = record, trouble
        self._lock = threading.Lock()
        self._sent = _read(record)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send the finite metrics of a step to the trackers that lack them, named as in MLflow."""
        finite = {}
        for key, one in metrics.items():
            if math.isfinite(one):
                finite[stored_key(key)] = one
        with self._lock:
            for name in list(self._trackers):
                fresh = {}
                for k, v in finite.items():
                    if (name, step, k) not in self._sent:
                        fresh[k] = v
                if fresh:
                    self._send(name, fresh, step)

    def finish(self, *, succeeded: bool) -> None:
        """End the run in every tracker."""
        with self._lock:
            while self._trackers:
                name, tracker = self._trackers.popitem()
                try:
                    tracker.finish(succeeded=succeeded)
                except Exception as error:
                    self._trouble(name, error)

    def _send(self, name: str, metrics: Mapping[str, float], step: int) -> None:
        try:
            self._trackers[name].log(metrics, step)
        except Exception as error:  # whatever a tracker raises, the training goes on without it
            del self._trackers[name]
            self._trouble(name, error)
            return
        entry = {"tracker": name, "step": step, "names": list(metrics)}
        with self._record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        self._sent.update((name, step, key) for key in metrics)


def _read(record: Path) -> set[tuple[str, int, str]]:
    """Return what was sent by earlier processes. A last line that a kill cut short is removed."""
    if not record.is_file():
        return set()
    whole, _, cut = record.read_text(encoding="utf-8").rpartition("\n")
    if cut:
        record.write_text(whole + "\n" if whole else "", encoding="utf-8")
    entries = map(json.loads, whole.splitlines())
    return {(one["tracker"], one["step"], name) for one in entries for name in one["names"]}
