"""TrainStack: the order of loss, backward and step for one track of a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import Metric, MetricKind, merge_all
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.dispatch import Collect, Dispatch, distributed
from rl_core.errors import RecipeError
from rl_core.train.fsdp import FSDPBackend


@dataclass(frozen=True)
class TrainStepResult:
    """What one rollout's training did on one rank: mergeable metrics, and values equal on all ranks."""

    metrics: dict[str, Metric]
    step_metrics: dict[str, float]

    @classmethod
    def merge(cls, parts: Sequence[TrainStepResult]) -> TrainStepResult:
        """The result over all replicas."""
        return cls(merge_all(part.metrics for part in parts), parts[0].step_metrics)


class TrainStack:
    """Runs `prepare_segment → mini-batches → micro-batches → optimizer_step` on one rank's shard.

    The shard needs `input_ids, attention_mask, position_ids` [B, P+T], `response_mask`, `rollout_log_probs`,
    `advantages` [B, T]. Gradients are those of the global mini-batch, whatever the micro-batch size and rank count.
    """

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        *,
        micro_batch_size: int,
        num_mini_batches: int = 1,
        num_updates_per_batch: int = 1,
        max_grad_norm: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        if num_updates_per_batch > 1 and not algorithm.supports_multi_update:
            raise RecipeError(f"{type(algorithm).__name__} trains once per rollout; set num_updates_per_batch to 1")
        self.backend, self.algorithm = fsdp_backend, algorithm
        self.micro_batch_size, self.num_mini_batches = micro_batch_size, num_mini_batches
        self.num_updates_per_batch, self.max_grad_norm = num_updates_per_batch, max_grad_norm
        self.temperature = temperature

    @distributed(Dispatch.DP_SCATTER, Collect.REDUCE)
    def train(self, shard: DataProto) -> TrainStepResult:
        """Train on one rollout's shard, in place."""
        shard = shard.to(self.backend.device)
        self.prepare_segment(shard)
        collected: list[dict[str, Metric]] = []
        steps: list[dict[str, float]] = []
        for _ in range(self.num_updates_per_batch):
            for mini_batch in shard.chunk(self.num_mini_batches):
                collected.extend(self._accumulate(mini_batch))
                steps.append(self.backend.optimizer_step(self.max_grad_norm))
        step_metrics = {key: sum(step[key] for step in steps) / len(steps) for key in steps[0]}
        step_metrics["skipped_steps"] = sum(step["skipped_steps"] for step in steps)
        return TrainStepResult(merge_all(collected), step_metrics)

    def prepare_segment(self, shard: DataProto) -> None:
        """Freeze what the updates are measured against: the old log-probabilities and the reference's.

        With a single optimiser step per rollout the old policy is the current one, so the anchor is the detached
        forward of that step itself and nothing is recomputed here.
        """
        batch = shard.batch
        assert batch is not None
        if self.num_updates_per_batch * self.num_mini_batches > 1:
            with torch.no_grad():
                batch["old_log_probs"] = self._log_probs(self.backend.policy, shard)
        if self.algorithm.needs_reference:
            with self.backend.reference_policy() as reference:
                batch["ref_log_probs"] = self._log_probs(reference, shard)

    def _accumulate(self, mini_batch: DataProto) -> list[dict[str, Metric]]:
        """Backward over a mini-batch's micro-batches, with the denominators of its global counterpart."""
        mask_BT = mini_batch.tensor("response_mask")
        num_tokens, num_sequences = self.backend.all_reduce_sum(
            [float(mask_BT.sum()), float((mask_BT.sum(-1) > 0).sum())]
        )
        denominators = Denominators(max(num_tokens, 1.0), max(num_sequences, 1.0), mask_BT.shape[1])
        return [self._backward(micro, denominators) for micro in mini_batch.split(self.micro_batch_size)]

    def _backward(self, micro: DataProto, denominators: Denominators) -> dict[str, Metric]:
        micro = trim_padding(micro)
        mask_BT = micro.tensor("response_mask")
        log_probs_BT, entropy_BT = self._forward(self.backend.policy, micro, with_entropy=True)
        assert micro.batch is not None
        old_BT = micro.batch.get("old_log_probs", log_probs_BT.detach())
        loss, metrics = self.algorithm.loss(
            log_probs_BT=log_probs_BT,
            old_log_probs_BT=old_BT,
            advantages_BT=micro.tensor("advantages"),
            mask_BT=mask_BT,
            ref_log_probs_BT=micro.batch.get("ref_log_probs", None),
            entropy_BT=entropy_BT,
            denominators=denominators,
        )
        # FSDP averages gradients over ranks; the loss is already a share of the global one.
        (loss * self.backend.rank_info.world_size).backward()
        delta_BT = (old_BT - micro.tensor("rollout_log_probs")).abs() * mask_BT
        count = float(mask_BT.sum())
        metrics["delta_log_prob_mean"] = Metric(MetricKind.MEAN, float(delta_BT.sum()), count)
        metrics["delta_log_prob_max"] = Metric(MetricKind.MAX, float(delta_BT.max()), count)
        return metrics

    def _log_probs(self, policy: Any, shard: DataProto) -> torch.Tensor:
        width = shard.tensor("response_mask").shape[1]
        rows = []
        for micro in shard.split(self.micro_batch_size):
            log_probs_BT = self._forward(policy, trim_padding(micro), with_entropy=False)[0]
            rows.append(torch.nn.functional.pad(log_probs_BT, (0, width - log_probs_BT.shape[1])))
        return torch.cat(rows)

    def _forward(self, policy: Any, micro: DataProto, *, with_entropy: bool) -> tuple[Any, Any]:
        return policy(
            micro.tensor("input_ids"),
            micro.tensor("attention_mask"),
            micro.tensor("position_ids"),
            micro.tensor("response_mask"),
            temperature=self.temperature,
            with_entropy=with_entropy,
            entropy_grad=self.algorithm.needs_entropy,
        )


def trim_padding(micro: DataProto) -> DataProto:
    """Cut columns that are padding in every row: left of all prompts, right of all responses."""
    assert micro.batch is not None
    attention_BL, mask_BT = micro.tensor("attention_mask"), micro.tensor("response_mask")
    num_response = mask_BT.shape[1]
    num_prompt = attention_BL.shape[1] - num_response
    used_L = attention_BL.any(0)
    first = int(used_L[:num_prompt].int().argmax())
    last = num_prompt + max(1, int(used_L[num_prompt:].sum()))
    tensors = {}
    for key, value in micro.batch.items():
        if value.dim() == 2 and value.shape[1] == attention_BL.shape[1]:
            tensors[key] = value[:, first:last]
        elif value.dim() == 2 and value.shape[1] == num_response:
            tensors[key] = value[:, : last - num_prompt]
        else:
            tensors[key] = value
    return DataProto.from_dict(tensors, micro.non_tensor_batch, micro.meta_info)
