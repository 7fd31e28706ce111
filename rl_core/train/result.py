"""Results of training on one rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from rl_core.algorithms.metrics import Metric, MetricKind, merge_all, to_floats


@dataclass(frozen=True)
class UpdateResult:
    """Result of one optimizer step. Every number is over all ranks."""

    loss: float
    """Loss of the whole mini-batch, by the algorithm's aggregation; NaN if it was empty."""
    grad_norm: float
    """Global 2-norm of the gradient before clipping; NaN if the mini-batch was empty."""
    lr: float
    """Learning rate of this step."""
    skipped: bool
    """True if no step was taken: the gradient was not finite, or no row had a learning signal."""
    num_tokens: int
    """Number of actions trained on."""


@dataclass(frozen=True)
class TrainStepResult:
    """Result of all optimizer steps of one rollout. Everything but `metrics` is the same on every
    rank."""

    loss: float
    """Mean of the updates' losses, over those that had rows to train on."""
    grad_norm: float
    """Mean of the updates' gradient norms, over the steps that were taken."""
    lr: float
    """Learning rate of the last update."""
    per_update: tuple[UpdateResult, ...]
    """The updates, in order."""
    skipped: int
    """Number of updates that took no step."""
    metrics: dict[str, Metric]
    """Metrics of this rank's rows (after `merge`: of all); sums are per update, so `loss` agrees
    with the field above."""
    log_probs: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)
    """The trainer's log-probabilities before the first update, [rows, actions] of this rank's shard
    (after `merge`: of every replica's); NaN in rows that no pass computed."""

    @classmethod
    def of(
        cls,
        updates: Sequence[UpdateResult],
        metrics: Sequence[dict[str, Metric]],
        log_probs: tuple[Tensor, ...] = (),
    ) -> TrainStepResult:
        """Summarise updates.

        Args: metrics: metrics of every micro-batch of every update. log_probs: the trainer's, of
        the shard.
        """
        num_counted = max(1, sum(update.num_tokens > 0 for update in updates))
        merged = {}
        for name, metric in merge_all(metrics).items():
            if metric.kind is MetricKind.SUM:
                merged[name] = replace(metric, value=metric.value / num_counted)
            else:
                merged[name] = metric
        return cls(
            loss=_mean([update.loss for update in updates if update.num_tokens]),
            grad_norm=_mean([update.grad_norm for update in updates if not update.skipped]),
            lr=updates[-1].lr,
            per_update=tuple(updates),
            skipped=sum(update.skipped for update in updates),
            metrics=merged,
            log_probs=log_probs,
        )

    @classmethod
    def merge(cls, parts: Sequence[TrainStepResult]) -> TrainStepResult:
        """Return the result over all replicas."""
        log_probs = tuple(one for part in parts for one in part.log_probs)
        metrics = merge_all(part.metrics for part in parts)
        return replace(parts[0], metrics=metrics, log_probs=log_probs)

    def to_floats(self) -> dict[str, float]:
        """Return the numbers to log, by name."""
        own = {
            "loss": self.loss,
            "grad_norm": self.grad_norm,
            "lr": self.lr,
            "skipped_steps": float(self.skipped),
        }
        return to_floats(self.metrics) | own


def _mean(values: list[float]) -> float:
    if values:
        return math.fsum(values) / len(values)
    return math.nan
