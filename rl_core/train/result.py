"""What training on one rollout did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rl_core.algorithms.metrics import Metric, MetricKind, merge_all, to_floats


@dataclass(frozen=True)
class UpdateResult:
    """One optimiser step. Every number is that of all ranks together."""

    loss: float
    """The loss of the whole mini-batch, by the algorithm's aggregation; NaN when it was empty."""
    grad_norm: float
    """Global 2-norm before clipping; NaN when the mini-batch was empty."""
    lr: float
    """Learning rate of this step."""
    skipped: bool
    """No step was taken: the gradient was not finite, or no row had anything to learn from."""
    num_tokens: int
    """Actions trained on."""


@dataclass(frozen=True)
class TrainStepResult:
    """All optimiser steps of one rollout. Everything but `metrics` is the same on every rank."""

    loss: float
    """Mean of the updates' losses, over those that had rows to train on."""
    grad_norm: float
    """Mean of the updates' gradient norms, over the steps that were taken."""
    lr: float
    """Learning rate of the last update."""
    per_update: tuple[UpdateResult, ...]
    """The updates, in order."""
    skipped: int
    """Updates that took no step."""
    metrics: dict[str, Metric]
    """Of this rank's rows (after `merge`: of all); sums are per update, so `loss` agrees with the field above."""

    @classmethod
    def of(cls, updates: Sequence[UpdateResult], metrics: Sequence[dict[str, Metric]]) -> TrainStepResult:
        """Args: metrics: of every micro-batch of every update."""
        num_counted = max(1, sum(update.num_tokens > 0 for update in updates))
        merged = {
            name: replace(metric, value=metric.value / num_counted) if metric.kind is MetricKind.SUM else metric
            for name, metric in merge_all(metrics).items()
        }
        return cls(
            loss=_mean([update.loss for update in updates if update.num_tokens]),
            grad_norm=_mean([update.grad_norm for update in updates if not update.skipped]),
            lr=updates[-1].lr,
            per_update=tuple(updates),
            skipped=sum(update.skipped for update in updates),
            metrics=merged,
        )

    @classmethod
    def merge(cls, parts: Sequence[TrainStepResult]) -> TrainStepResult:
        """The result over all replicas."""
        return replace(parts[0], metrics=merge_all(part.metrics for part in parts))

    def to_floats(self) -> dict[str, float]:
        """The numbers to log, by name."""
        own = {"loss": self.loss, "grad_norm": self.grad_norm, "lr": self.lr, "skipped_steps": float(self.skipped)}
        return to_floats(self.metrics) | own


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
