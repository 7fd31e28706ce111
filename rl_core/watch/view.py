"""The metrics of one track up to a step, as watchers see them: values that are not finite are left
out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean


@dataclass
class Curve:
    """The finite values of one metric, with their steps."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.values)

    def first(self, num: int) -> Stretch:
        """Return the first `num` values."""
        return Stretch(self.steps[:num], self.values[:num])

    def last(self, num: int) -> Stretch:
        """Return the last `num` values."""
        return Stretch(self.steps[-num:], self.values[-num:])

    def before(self, num: int, left_out: int = 1) -> Stretch:
        """Return up to `num` values before the last `left_out`."""
        end = len(self) - left_out
        start = max(0, end - num)
        return Stretch(self.steps[start:end], self.values[start:end])


@dataclass(frozen=True)
class Stretch:
    """Some values of a metric that follow each other."""

    steps: Sequence[int]
    values: Sequence[float]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def total(self) -> float:
        return math.fsum(self.values)

    def __str__(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        if first == last:
            return f"step {first}"
        return f"steps {first} to {last}"


@dataclass(frozen=True)
class Facts:
    """Settings of a recipe that watchers compare with."""

    max_grad_norm: float = math.inf
    prompts_per_step: int = 1
    compares_siblings: bool = True
    """True if the advantages of the track are relative to siblings."""
    has_own_end: bool = True
    """True if a reply ends by itself; a plan or a rewrite of a tree may have a fixed length."""
    paying: Mapping[str, float] = field(default_factory=dict)
    """Weights of the scorers that count, by key."""
    onlookers: Sequence[str] = ()
    """Keys of the scorers of weight 0."""


class View:
    """The metrics of a track so far. Metrics of the whole run are those without a prefix."""

    def __init__(self, prefix: str, facts: Facts) -> None:
        self.prefix, self.facts = prefix, facts
        self.step = 0
        self._curves: dict[str, Curve] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add the metrics of the next step."""
        self.step = int(metrics["step"])
        for name, value in metrics.items():
            if name.startswith(self.prefix) and math.isfinite(value):
                curve = self._curves.setdefault(name.removeprefix(self.prefix), Curve())
                curve.steps.append(self.step)
                curve.values.append(value)

    def curve(self, name: str, least: int = 1) -> Curve | None:
        """Return a metric if this step has it and it has `least` values, else None."""
        found = self._curves.get(name)
        if found is None or len(found) < least or found.steps[-1] != self.step:
            return None
        return found

    def past(self, name: str) -> Curve:
        """Return a metric, which this step need not have; empty if no step had it."""
        return self._curves.get(name, Curve())

    def named(self, start: str, end: str) -> Iterator[tuple[str, Curve]]:
        """Yield the metrics `<start><name><end>` by name, whether this step has them or not."""
        for name, curve in self._curves.items():
            if name.startswith(start) and name.endswith(end):
                yield name[len(start) : -len(end)], curve
