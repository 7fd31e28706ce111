"""Result of a program that ran in a sandbox, wherever it ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """End of a test's process."""

    FINISHED = "finished"
    """The process exited with code 0."""
    FAILED = "failed"
    """The process raised, exited with another code, or was killed by a signal."""
    TIMEOUT = "timeout"
    """The process exceeded its time."""
    OUTPUT_LIMIT = "output_limit"
    """The process wrote more than its limit."""
    LOST = "lost"
    """The sandbox itself ended or did not answer."""


@dataclass(frozen=True)
class Execution:
    """Result of one test. All of it was written by the program and may be forged."""

    outcome: Outcome
    stdout: bytes = b""
    stderr: bytes = b""
    result: bytes = b""
    """Return value of a call as JSON."""
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Call:
    """A function (or method of the class `Solution`) to call, and its arguments."""

    name: str
    arguments: Sequence[object]
