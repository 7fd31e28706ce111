"""A watcher, and the alarm that it raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from rl_core.watch.view import View
from schemas.sections.watching import Reaction


class Rows(StrEnum):
    """Rows of a step that show a sign, as `rl-train rollouts --sort` names their order."""

    STEP = "step"
    """The first rows of the step."""
    REWARD = "reward"
    """The rows of the highest reward."""
    ADVANTAGE = "advantage"
    """The rows of the largest advantage."""
    LENGTH = "length"
    """The longest rows."""
    DELTA = "delta"
    """The rows on which trainer and engine differ most."""


@dataclass(frozen=True)
class Watcher:
    """A sign of a sick training, and what follows from it."""

    name: str
    """Key in the recipe's `watch`."""
    sign: str
    """The sign that it looks for, and where that comes from."""
    cause: str
    """Usual causes, in one sentence without its full stop."""
    advice: str
    """Recipe keys to change, in one sentence without its full stop."""
    look: Callable[[View], str | None]
    """Function that returns the evidence with its steps, or None if all is well."""
    rows: Rows = Rows.STEP
    of_run: bool = False
    """True if its metrics are of the whole run, and not of each track."""


@dataclass(frozen=True)
class Alarm:
    """A watcher that fired in one or more steps."""

    watcher: str
    track: str
    """Name of the track; empty in recipes with one track, and for metrics of the whole run."""
    first_step: int
    last_step: int
    evidence: str
    """Numbers with their steps, of the last step in which it fired."""
    cause: str
    advice: str
    rows: Rows
    reaction: Reaction
    sample_ids: tuple[str, ...] = ()
    """Rows of the first step that show it, if they are known."""

    @property
    def when(self) -> str:
        """Return the steps in which it fired."""
        if self.first_step == self.last_step:
            return f"step {self.first_step}"
        return f"steps {self.first_step} to {self.last_step}"

    @property
    def key(self) -> str:
        """Return its name in tags, with that of its track: `images/kl`."""
        if self.track:
            return f"{self.track}/{self.watcher}"
        return self.watcher

    @property
    def title(self) -> str:
        """Return its name with that of its track."""
        if self.track:
            return f"{self.track}: {self.watcher}"
        return self.watcher

    def __str__(self) -> str:
        rows = f"; rows: {', '.join(self.sample_ids)}" if self.sample_ids else ""
        return (
            f"watch {self.title}, {self.when}: {self.evidence}{rows}. Usual cause: {self.cause}. "
            f"To change: {self.advice}"
        )
