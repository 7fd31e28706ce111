"""Parts of the GPU suite, by priority, with the seconds that each may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part: its name, which is that of its module and of its result, and its budget."""

    name: str
    seconds: int
    title: str
    """Heading of its section in docs/gpu.md."""


PARTS = (
    Part("machine", 40, "The machine"),
    Part("gpu_tests", 90, "The tests of `make test-gpu`"),
    Part("recipes", 90, "The recipes `text` and `vision`"),
    Part("speed", 180, "A step, by model and lengths"),
    Part("peer", 60, "Beside TRL"),
    Part("kernels", 40, "Where the time goes, by kernel"),
    Part("ranks", 30, "FSDP2 as on several ranks"),
)
"""Their budgets add up to less than nine minutes. What one leaves is the next one's."""
TOTAL_S = 535


def part_named(name: str) -> Part:
    """Return the part of this name."""
    return next(part for part in PARTS if part.name == name)
