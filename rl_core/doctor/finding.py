"""One thing that was looked at: what was found, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    GOOD = "good"
    """Nothing to do."""
    WARNING = "warning"
    """Runs work, yet something may be slow, or fail later."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and its mend."""

    area: str
    name: str
    level: Level
    found: str
    mend: str = ""
    """What to do; empty where nothing is to be done."""


def good(area: str, name: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(area, name, Level.GOOD, found)


def warning(area: str, name: str, found: str, mend: str) -> Finding:
    """Runs work, with something to know."""
    return Finding(area, name, Level.WARNING, found, mend)


def problem(area: str, name: str, found: str, mend: str) -> Finding:
    """Something does not work."""
    return Finding(area, name, Level.PROBLEM, found, mend)
