"""The sequence of loss, backward and step that all stacks share; a subclass defines the actions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, TypedDict

import torch
from torch import Tensor

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.requirements.trainers import check_multi_update
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.ranks.dispatch import Collect, Dispatch, distributed
from rl_core.train import micro_batches
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.micro_batches import Lengths, MiniBatch, Rows
from rl_core.train.result import TrainStepResult, UpdateResult
from schemas.sections.placement import ROWS_OF_A_PASS

DELTA_AT = "delta_log_prob_at/"
"""Prefix of the names of drift metrics, before the first position of an interval."""


class UpdateOptions(TypedDict, total=False):
    """Arguments of every stack but the rows of a pass; see `SegmentStack`."""

    num_updates_per_batch: int
    num_epochs: int
    max_grad_norm: float
    skip_zero_advantages: bool
    max_length: int | None


class StackOptions(UpdateOptions, total=False):
    """Arguments of every stack after its backend and algorithm; see `SegmentStack`."""

    micro_batch_size: int | None


class SegmentStack(ABC):
    """Runs `prepare_segment → mini-batches → micro-batches → optimizer_step` on one rank's shard.

    The shard needs `response_mask`, `advantages` [B, T]. Gradients are those of the global
    mini-batch, whatever the micro-batches and rank count. Rows without a set `response_mask` take
    no part; the algorithm's `rows_per_unit` adjacent rows stay in one micro-batch.

    Args: micro_batch_size: rows of a pass; unset leaves it to the stack. num_updates_per_batch:
    disjoint mini-batches of the shard, an optimizer step for each. num_epochs: passes over all of
    them. skip_zero_advantages: leave rows whose advantages are all 0 out of the passes, if the
    algorithm declares that they change nothing; they still count in the denominators. max_length:
    the constant of `seq-mean-token-sum-norm`; unset takes the width of each rollout.
    """

    needs_advantages: ClassVar[bool] = True
    """True if the gradient is the algorithm's, so that its `vanishes_without_advantage` holds
    here."""

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        *,
        micro_batch_size: int | None = None,
        num_updates_per_batch: int = 1,
        num_epochs: int = 1,
        max_grad_norm: float = 1.0,
        skip_zero_advantages: bool = True,
        max_length: int | None = None,
    ) -> None:
        check_multi_update(algorithm, num_updates_per_batch, num_epochs)
        self.backend, self.algorithm = fsdp_backend, algorithm
        self.micro_batch_size = micro_batch_size or ROWS_OF_A_PASS
        self.num_updates_per_batch, self.num_epochs = num_updates_per_batch, num_epochs
        self.max_grad_norm, self.max_length = max_grad_norm, max_length
        self.first_log_probs = torch.empty(0, 0)
        self.skips = (
            skip_zero_advantages and self.needs_advantages and algorithm.vanishes_without_advantage
        )

    @distributed(Dispatch.DP_SCATTER, Collect.REDUCE)
    def train(self, shard: DataProto) -> TrainStepResult:
        """Train on one rollout's shard."""
        shard, plan = self.open(shard)
        metrics: list[dict[str, Metric]] = []
        steps = []
        for _ in range(self.num_epochs):
            for mini_batch in plan:
                steps.append(self._update(shard, mini_batch, metrics))
        losses = self.backend.all_reduce_sum([loss for loss, _ in steps])
        updates = []
        for loss, (_, step), mini_batch in zip(losses, steps, plan * self.num_epochs, strict=True):
            updates.append(
                UpdateResult(
                    loss=math.nan if mini_batch.is_empty else loss,
                    grad_norm=step["grad_norm"],
                    lr=step["lr"],
                    skipped=bool(step["skipped"]),
                    num_tokens=int(mini_batch.denominators.num_tokens),
                )
            )
        return TrainStepResult.of(updates, metrics, (self.first_log_probs,))

    def open(self, shard: DataProto) -> tuple[DataProto, list[MiniBatch]]:
        """Return a rollout's shard on the device, with its anchors, and its division for the
        optimizer steps."""
        shard = shard.to(self.backend.device)
        plan = self._plan(shard)
        self.first_log_probs = torch.full(shard.tensor("response_mask").shape, math.nan)
        self.prepare_segment(shard, plan)
        return shard, plan

    def accumulate(
        self,
        shard: DataProto,
        mini_batch: MiniBatch,
        metrics: list[dict[str, Metric]],
        weight: float = 1.0,
    ) -> float:
        """Run backward over a mini-batch's micro-batches, without the step.

        Args: metrics: receives those of each micro-batch. weight: weight of the loss in the
        gradient.
        Returns: this rank's share of the loss, unweighted.
        """
        share, passes = 0.0, mini_batch.micro_batches
        for index, rows in enumerate(passes):
            micro = self.take(shard, rows)
            loss, measured = self._loss(micro, mini_batch.denominators)
            self.backend.backward(weight * loss, last=index == len(passes) - 1)
            if rows:
                share += float(loss.detach())
                metrics.append(measured)
                self._keep_log_probs(micro, rows)
        return share

    def _keep_log_probs(self, micro: DataProto, rows: Rows) -> None:
        """Keep the old log-probabilities that a `_loss` left in its micro-batch; they are equal in
        every epoch."""
        old_BT = None if micro.batch is None else micro.batch.get("old_log_probs", None)
        if old_BT is not None:
            self.first_log_probs[rows, : old_BT.shape[1]] = old_BT.float().cpu()

    @property
    def moves(self) -> bool:
        """True if the trained policy may differ from the one that sampled before the segment
        ends."""
        return self.num_updates_per_batch * self.num_epochs > 1 or self.backend.rolls_out_average

    @abstractmethod
    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Freeze in the shard the anchors of the updates, over the very micro-batches of the
        plan."""

    @abstractmethod
    def lengths(self, shard: DataProto) -> Lengths:
        """Return the cost of each row in a pass."""

    @abstractmethod
    def take(self, shard: DataProto, rows: Rows) -> DataProto:
        """Return a micro-batch of the shard; for no rows, one that does not train."""

    @abstractmethod
    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the micro-batch's share of the step's loss, and its metrics."""

    def _plan(self, shard: DataProto) -> list[MiniBatch]:
        """Return mini-batches of the trained rows, each divided into as many micro-batches on every
        rank.

        A mini-batch without a row to compute has one idle pass, so that its gradient exists and is
        0.
        """
        mask_BT = shard.tensor("response_mask")
        lengths, skipped = self.lengths(shard), self._skipped_rows(shard)
        units = micro_batches.units_of(
            micro_batches.trained_rows(mask_BT), self.algorithm.rows_per_unit
        )
        by_part = micro_batches.split_evenly(list(range(len(units))), self.num_updates_per_batch)
        parts = []
        for chosen in by_part:
            parts.append([units[index] for index in chosen])
        computed = []
        for part in parts:
            computed.append([unit for unit in part if not skipped.issuperset(unit)])
        passes = [self._cut(part, lengths) for part in computed]
        most = self.backend.all_reduce_max([float(max(1, len(cut))) for cut in passes])
        own_counts: list[float] = []
        for rows in map(micro_batches.flatten, parts):
            own_counts += [float((mask_BT[rows] != 0).sum()), float(len(rows))]
        counts = self.backend.all_reduce_sum(own_counts)
        mini_batches: list[MiniBatch] = []
        for index, (part, wanted) in enumerate(zip(computed, most, strict=True)):
            mini_batches.append(
                MiniBatch(
                    self._fill(self._cut(part, lengths, int(wanted)), int(wanted)),
                    Denominators(
                        counts[2 * index],
                        counts[2 * index + 1],
                        self.max_length or mask_BT.shape[1],
                    ),
                )
            )
        return mini_batches

    def _skipped_rows(self, shard: DataProto) -> set[int]:
        """Return the rows that no pass has to compute."""
        columns = shard.batch
        advantages_BT = None if columns is None else columns.get("advantages", None)
        if columns is None or advantages_BT is None or not self.skips:
            return set()
        # `measure` computed its log-probabilities in passes over all rows; the first ratio is
        # exactly 1 only if training uses the same passes.
        if columns.get("old_log_probs", None) is not None:
            return set()
        return set((advantages_BT == 0).all(-1).nonzero()[:, 0].tolist())

    def _cut(self, units: list[Rows], lengths: Lengths, at_least: int = 0) -> list[Rows]:
        """Return passes over these units, at least `at_least` if there are enough units."""
        places = list(range(len(units)))
        cut = micro_batches.by_row_count(
            places, max(1, self.micro_batch_size // self.algorithm.rows_per_unit)
        )
        groups: list[Rows] = []
        for part in cut:
            groups.append(micro_batches.flatten([units[place] for place in part]))
        return groups

    @staticmethod
    def _fill(passes: list[Rows], wanted: int) -> list[Rows]:
        return passes + [[] for _ in range(wanted - len(passes))]

    def _update(
        self, shard: DataProto, mini_batch: MiniBatch, metrics: list[dict[str, Metric]]
    ) -> tuple[float, dict[str, float]]:
        """Run backward over a mini-batch's micro-batches, then the step.

        Returns: this rank's share of the loss, and the result of `optimizer_step`.
        """
        if mini_batch.is_empty:
            lr = self.backend.optimizer.param_groups[0]["lr"]
            return 0.0, {"grad_norm": math.nan, "lr": lr, "skipped": 1.0}
        share = self.accumulate(shard, mini_batch, metrics)
        return share, self.backend.optimizer_step(self.max_grad_norm)


def drift(old_BT: Tensor, rollout_BT: Tensor | None, mask_BT: Tensor) -> dict[str, Metric]:
    """Return the difference between the trainer's log-probabilities and those of the rollout
    engine, if it reported any.

    In addition to the total: by the position of the action in its row, in intervals that double (0,
    1, 2 and 3, 4 to 7, …), each under its first position.
    """
    if rollout_BT is None:
        return {}
    acts_BT = mask_BT != 0
    delta_BT = (old_BT - rollout_BT).abs().masked_fill(~acts_BT, 0.0)
    sums, counts = delta_BT.sum(0).tolist(), acts_BT.sum(0).tolist()
    metrics = {
        "delta_log_prob_mean": Metric(MetricKind.MEAN, math.fsum(sums), float(sum(counts))),
        "delta_log_prob_square": Metric(
            MetricKind.MEAN, float(delta_BT.square().sum()), float(sum(counts))
        ),
        "delta_log_prob_max": Metric(MetricKind.MAX, float(delta_BT.max()), float(sum(counts))),
    }
    start = 0
    while start < len(sums):
        stop = max(1, 2 * start)
        part = Metric(MetricKind.MEAN, math.fsum(sums[start:stop]), float(sum(counts[start:stop])))
        metrics[f"{DELTA_AT}{start:05d}"] = part
        start = stop
    return metrics
