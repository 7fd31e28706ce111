"""What is happening now, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.receipts import Receipt


@dataclass(frozen=True)
class ProgressEvent:
    """One phase began, a step ended (then `metrics` is filled), or a task ended (then `receipt`
    is)."""

    phase: str
    """`start workers`, `rollout`, `train`, `save`, `export`, `evaluate`, `step`, `note`."""
    step: int = 0
    total_steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    receipt: Receipt | None = None
    """What a task returned, when the event is its end."""
    text: str = ""
    """Of a `note`: something that a person should know."""


Listener = Callable[[ProgressEvent], None]
listeners: list[Listener] = []


def announce(event: ProgressEvent) -> None:
    """Tell every listener."""
    for listener in listeners:
        listener(event)
