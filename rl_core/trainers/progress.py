"""Progress events, and the listeners that display them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rl_core.watch.watcher import Alarm
from schemas.receipts import Receipt

STAGE = "stage"
"""Phase of the event that a stage of a chain begins: `text` is its name, `step` its number."""


@dataclass(frozen=True)
class ProgressEvent:
    """The begin of a phase, the end of a step (with `metrics`), or the end of a task (with
    `receipt`)."""

    phase: str
    """Name of the phase: `start workers`, `rollout`, `train`, `save`, `export`, `evaluate`, `step`,
    `note`, `stage`."""
    step: int = 0
    total_steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    receipt: Receipt | None = None
    """Receipt that a task returned, if the event is its end."""
    text: str = ""
    """Message for the user, if the event is a `note`."""
    alarm: Alarm | None = None
    """Alarm that the `note` is about, if a watcher rang."""


Listener = Callable[[ProgressEvent], None]
listeners: list[Listener] = []


def announce(event: ProgressEvent) -> None:
    """Pass the event to every listener."""
    for listener in listeners:
        listener(event)
