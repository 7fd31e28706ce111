"""TrainStack: the order of loss, backward and step for one track of a rollout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.dispatch import Collect, Dispatch, distributed
from rl_core.errors import RecipeError
from rl_core.train import micro_batches
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.micro_batches import MiniBatch, Rows
from rl_core.train.result import TrainStepResult, UpdateResult


class TrainStack:
    """Runs `prepare_segment → mini-batches → micro-batches → optimizer_step` on one rank's shard.

    The shard needs `input_ids, attention_mask, position_ids` [B, P+T], `response_mask`, `advantages` [B, T], and
    `rollout_log_probs` [B, T] where a rollout reported them. Gradients are those of the global mini-batch, whatever the
    micro-batches and rank count. Rows without a set `response_mask` take no part; the algorithm's `rows_per_unit`
    adjacent rows stay in one micro-batch.

    Args: micro_batch_size: rows of a pass. max_tokens_per_micro_batch: instead, pack rows into passes of that size.
    max_length: the constant of `seq-mean-token-sum-norm`; unset takes the width of each rollout.
    """

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        *,
        micro_batch_size: int,
        max_tokens_per_micro_batch: int | None = None,
        num_mini_batches: int = 1,
        num_updates_per_batch: int = 1,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
        max_length: int | None = None,
    ) -> None:
        check_multi_update(algorithm, num_updates_per_batch)
        self.backend, self.algorithm = fsdp_backend, algorithm
        self.micro_batch_size, self.max_tokens = micro_batch_size, max_tokens_per_micro_batch
        self.num_mini_batches, self.num_updates_per_batch = num_mini_batches, num_updates_per_batch
        self.max_grad_norm, self.temperature, self.max_length = max_grad_norm, temperature, max_length
        if self.max_tokens is not None:
            fsdp_backend.enable_packing()

    @distributed(Dispatch.DP_SCATTER, Collect.REDUCE)
    def train(self, shard: DataProto) -> TrainStepResult:
        """Train on one rollout's shard, which is moved to the device and given its anchors in place."""
        shard = shard.to(self.backend.device)
        plan = self._plan(shard)
        self.prepare_segment(shard, plan)
        metrics: list[dict[str, Metric]] = []
        steps = [
            self._update(shard, mini_batch, metrics) for _ in range(self.num_updates_per_batch) for mini_batch in plan
        ]
        losses = self.backend.all_reduce_sum([loss for loss, _ in steps])
        updates = [
            UpdateResult(
                loss=math.nan if mini_batch.is_empty else loss,
                grad_norm=step["grad_norm"],
                lr=step["lr"],
                skipped=bool(step["skipped"]),
                num_tokens=int(mini_batch.denominators.num_tokens),
            )
            for loss, (_, step), mini_batch in zip(losses, steps, plan * self.num_updates_per_batch, strict=True)
        ]
        return TrainStepResult.of(updates, metrics)

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def measure(self, shard: DataProto) -> DataProto | None:
        """What `StageAlgorithm.advantages` needs to know of the policy that rolled out, before anything is trained.

        Returns: `old_log_probs`, and where the algorithm asks for them `ref_log_probs` and `sum_squared_probs`, [B, T];
        None on a rank that does not speak for its replica. `train` takes over those that it finds in its shard.
        """
        shard = shard.to(self.backend.device)
        plan, columns = self._plan(shard), {}
        with self.backend.anchor_policy() as anchor:
            old_BT = columns["old_log_probs"] = self._log_probs(anchor, shard, plan)
            if self.algorithm.needs_sum_squared_probs:
                # log p(t) = l_t - Z(l), so log sum p^2 = Z(2 l) - 2 Z(l) = 2 log p(t) - log p(t) at half temperature.
                sharper_BT = self._log_probs(anchor, shard, plan, temperature=self.temperature / 2)
                columns["sum_squared_probs"] = (2 * old_BT - sharper_BT).exp() * (shard.tensor("response_mask") != 0)
        if self.algorithm.kl_in_reward:
            with self.backend.reference_policy() as reference:
                columns["ref_log_probs"] = self._log_probs(reference, shard, plan)
        return DataProto.from_dict(columns) if self.backend.rank_info.is_head else None

    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Freeze what the updates are measured against: the old log-probabilities and the reference's.

        They are computed once, over the very micro-batches that are trained afterwards: the first ratio is exactly 1.
        With a single optimiser step per rollout the old policy is the current one: the anchor is then the forward of
        that step itself, detached, and nothing is computed here.
        """
        batch = shard.batch
        assert batch is not None
        moves = self.num_updates_per_batch * self.num_mini_batches > 1 or self.backend.rolls_out_average
        if moves and batch.get("old_log_probs", None) is None:
            with self.backend.anchor_policy() as anchor:
                batch["old_log_probs"] = self._log_probs(anchor, shard, plan)
        if self.algorithm.needs_reference and batch.get("ref_log_probs", None) is None:
            with self.backend.reference_policy() as reference:
                batch["ref_log_probs"] = self._log_probs(reference, shard, plan)

    def _plan(self, shard: DataProto) -> list[MiniBatch]:
        """Mini-batches of the rows that are trained, each cut into as many micro-batches on every rank."""
        mask_BT = shard.tensor("response_mask")
        lengths_B = shard.tensor("attention_mask").sum(-1).tolist()
        units = micro_batches.units_of(micro_batches.trained_rows(mask_BT), self.algorithm.rows_per_unit)
        by_part = micro_batches.split_evenly(list(range(len(units))), self.num_mini_batches)
        parts = [[units[index] for index in chosen] for chosen in by_part]
        passes = [self._cut(part, lengths_B) for part in parts]
        most = self.backend.all_reduce_max([float(len(cut)) for cut in passes])
        counts = self.backend.all_reduce_sum(
            [
                count
                for rows in map(micro_batches.flatten, parts)
                for count in (float((mask_BT[rows] != 0).sum()), float(len(rows)))
            ]
        )
        return [
            MiniBatch(
                self._fill(self._cut(part, lengths_B, int(wanted)), int(wanted)),
                Denominators(counts[2 * index], counts[2 * index + 1], self.max_length or mask_BT.shape[1]),
            )
            for index, (part, wanted) in enumerate(zip(parts, most, strict=True))
        ]

    def _cut(self, units: list[Rows], lengths_B: list[int], at_least: int = 0) -> list[Rows]:
        places = list(range(len(units)))
        if self.max_tokens is None:
            cut = micro_batches.by_row_count(places, max(1, self.micro_batch_size // self.algorithm.rows_per_unit))
        else:
            lengths_U = [sum(lengths_B[row] for row in unit) for unit in units]
            cut = micro_batches.by_token_count(places, lengths_U, self.max_tokens, at_least)
        return [micro_batches.flatten([units[place] for place in part]) for part in cut]

    @staticmethod
    def _fill(passes: list[Rows], wanted: int) -> list[Rows]:
        return passes + [[] for _ in range(wanted - len(passes))]

    def _update(
        self, shard: DataProto, mini_batch: MiniBatch, metrics: list[dict[str, Metric]]
    ) -> tuple[float, dict[str, float]]:
        """Backward over a mini-batch's micro-batches, then the step.

        Returns: this rank's share of the loss, and what `optimizer_step` says.
        """
        if mini_batch.is_empty:
            lr = self.backend.optimizer.param_groups[0]["lr"]
            return 0.0, {"grad_norm": math.nan, "lr": lr, "skipped": 1.0}
        share, passes = 0.0, mini_batch.micro_batches
        for index, rows in enumerate(passes):
            micro = micro_batches.take(shard, rows)
            loss, measured = self._loss(micro, mini_batch.denominators)
            self.backend.backward(loss, last=index == len(passes) - 1)
            if rows:
                share += float(loss.detach())
                metrics.append(measured)
        return share, self.backend.optimizer_step(self.max_grad_norm)

    def _loss(self, micro: DataProto, denominators: Denominators) -> tuple[Tensor, dict[str, Metric]]:
        mask_BT = micro.tensor("response_mask")
        log_probs_BT, entropy_BT = self._forward(self.backend.policy, micro, with_entropy=True)
        assert micro.batch is not None
        old_BT = micro.batch.get("old_log_probs", log_probs_BT.detach())
        rollout_BT = micro.batch.get("rollout_log_probs", None)
        measured = {"rollout_log_probs_BT": rollout_BT} if self.algorithm.needs_rollout_log_probs else {}
        loss, metrics = self.algorithm.loss(
            log_probs_BT=log_probs_BT,
            old_log_probs_BT=old_BT,
            advantages_BT=micro.tensor("advantages"),
            mask_BT=mask_BT,
            ref_log_probs_BT=micro.batch.get("ref_log_probs", None),
            entropy_BT=entropy_BT,
            denominators=denominators,
            **measured,
        )
        return loss, metrics | _drift(old_BT, rollout_BT, mask_BT)

    def _log_probs(
        self, policy: Any, shard: DataProto, plan: list[MiniBatch], temperature: float | None = None
    ) -> Tensor:
        """[B, T], zero in rows that are not trained."""
        log_probs_BT = torch.zeros(shard.tensor("response_mask").shape, device=self.backend.device)
        for rows in (rows for mini_batch in plan if not mini_batch.is_empty for rows in mini_batch.micro_batches):
            micro = micro_batches.take(shard, rows)
            micro_BT = self._forward(policy, micro, with_entropy=False, temperature=temperature)[0]
            if rows:
                log_probs_BT[rows, : micro_BT.shape[1]] = micro_BT
        return log_probs_BT

    def _forward(
        self, policy: Any, micro: DataProto, *, with_entropy: bool, temperature: float | None = None
    ) -> tuple[Any, Any]:
        return policy(
            micro.tensor("input_ids"),
            micro.tensor("attention_mask"),
            micro.tensor("position_ids"),
            micro.tensor("response_mask"),
            temperature=temperature or self.temperature,
            with_entropy=with_entropy,
            entropy_grad=self.algorithm.needs_entropy,
            packed=self.max_tokens is not None,
            media_B=list(micro.non_tensor_batch.get("media", ())) or None,
        )


def check_multi_update(algorithm: Any, num_updates_per_batch: int) -> None:
    """Raises: RecipeError when the algorithm (or its class) cannot train on one rollout more than once."""
    if num_updates_per_batch > 1 and not algorithm.supports_multi_update:
        name = algorithm.__name__ if isinstance(algorithm, type) else type(algorithm).__name__
        raise RecipeError(
            f"training.num_updates_per_batch is {num_updates_per_batch}, but {name} trains once per rollout; set 1"
        )


def _drift(old_BT: Tensor, rollout_BT: Tensor | None, mask_BT: Tensor) -> dict[str, Metric]:
    """How far the trainer's log-probabilities are from those the rollout engine reported, if one did."""
    if rollout_BT is None:
        return {}
    delta_BT = (old_BT - rollout_BT).abs().masked_fill(mask_BT == 0, 0.0)
    count = float((mask_BT != 0).sum())
    return {
        "delta_log_prob_mean": Metric(MetricKind.MEAN, float(delta_BT.sum()), count),
        "delta_log_prob_max": Metric(MetricKind.MAX, float(delta_BT.max()), count),
    }
