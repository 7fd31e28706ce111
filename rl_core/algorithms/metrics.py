"""Metrics that reduce exactly over micro-batches, ranks and steps, whatever the sizes of the parts.

A metric has a total and a weight instead of a mean, so merging parts gives the number of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter


class MetricKind(StrEnum):
    """Rule by which the parts of a metric are merged."""

    MEAN = "mean"
    """Sum of the values over the sum of the weights."""
    SUM = "sum"
    """Sum of the values."""
    MAX = "max"
    """Largest value."""
    MIN = "min"
    """Smallest value."""
    LAST = "last"
    """Value of the last part, in the order of merging: micro-batches, then ranks, then steps."""


@dataclass(frozen=True)
class Metric:
    """One metric, before its parts are merged."""

    kind: MetricKind
    """Rule by which parts are merged."""
    value: float
    """Value: the weighted SUM of the values, not yet divided, for means; the sum for sums; the
    value itself for max, min and last."""
    weight: float
    """Number of tokens, rows or groups counted; a part with weight 0 changes nothing."""

    def result(self) -> float:
        """Return the number to log; NaN if nothing was counted."""
        if self.weight == 0:
            if self.kind is MetricKind.SUM:
                return 0.0
            return math.nan
        if self.kind is MetricKind.MEAN:
            return self.value / self.weight
        return self.value


_REDUCE: dict[MetricKind, Callable[[list[float]], float]] = {
    MetricKind.MEAN: math.fsum,
    MetricKind.SUM: math.fsum,
    MetricKind.MAX: max,
    MetricKind.MIN: min,
    MetricKind.LAST: itemgetter(-1),
}


def merge(parts: Iterable[Metric]) -> Metric:
    """Return the metric of the whole. Raises: ValueError when there are no parts or their kinds
    differ."""
    parts = list(parts)
    kinds = {part.kind for part in parts}
    if len(kinds) != 1:
        raise ValueError(f"metrics to merge must be one or more of one kind, got {sorted(kinds)}")
    kind = kinds.pop()
    weight = math.fsum(part.weight for part in parts)
    counted = [part.value for part in parts if part.weight > 0]
    return Metric(kind, _REDUCE[kind](counted) if counted else 0.0, weight)


def merge_all(parts: Iterable[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Merge by name; a name that only some parts have is merged over those."""
    by_name: dict[str, list[Metric]] = {}
    for part in parts:
        for name, metric in part.items():
            by_name.setdefault(name, []).append(metric)
    return {name: merge(metrics) for name, metrics in by_name.items()}


def to_floats(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return the numbers to log, by name."""
    return {name: metric.result() for name, metric in metrics.items()}
