"""The result of one check: what was found, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity of a finding."""

    GOOD = "good"
    """No problem."""
    WARNING = "warning"
    """Runs work, but something may be slow, or fail later."""
    PROBLEM = "problem"
    """Something does not work."""


@dataclass(frozen=True)
class Finding:
    """Result of one check: its subject, what was found, and the fix."""

    area: str
    name: str
    level: Level
    found: str
    fix: str = ""
    """Fix of the problem; empty if there is nothing to do."""


def good(area: str, name: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(area, name, Level.GOOD, found)


def warning(area: str, name: str, found: str, fix: str) -> Finding:
    """Return a finding about something that works but may be slow or fail later."""
    return Finding(area, name, Level.WARNING, found, fix)


def problem(area: str, name: str, found: str, fix: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(area, name, Level.PROBLEM, found, fix)
