"""TrainStack: the stack of a language model, whose actions are tokens."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from rl_core.algorithms.base import ActionMeasures, StageAlgorithm
from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.errors import ModelError
from rl_core.kernels import multiplies_in_bfloat16, multiplies_in_tiles
from rl_core.models import shared_prompts
from rl_core.models.decoding.distributions import DistributionReader
from rl_core.models.decoding.restriction import Restriction
from rl_core.models.decoding.routing import ROUTING
from rl_core.models.decoding.token_choice import SUPPORT
from rl_core.ranks.dispatch import Collect, Dispatch, distributed
from rl_core.train import micro_batches
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.micro_batches import Lengths, MiniBatch, Rows
from rl_core.train.sharding.fsdp_wrap import DTYPES
from rl_core.train.stacks.segments import SegmentStack, UpdateOptions, drift
from schemas.sections.placement import TOKENS_IN_BFLOAT16, TOKENS_IN_TILES, TOKENS_ON_GPU
from schemas.sections.sampling import SamplingConfig


class TrainStack(SegmentStack):
    """A SegmentStack over tokens.

    The shard also needs `input_ids, attention_mask, position_ids` [B, P+T], and `rollout_log_probs`
    [B, T] if a rollout reported them.

    Args: micro_batch_size: rows of a pass; unset lets a GPU, or a CPU with bfloat16 instructions,
    take as many as keep it busy. max_tokens_per_micro_batch: instead of a number of rows, pack them
    into passes of that size. share_prompts: prefix sharing in a pass, if the model supports it;
    groups are contiguous rows, and passes then take rows in order. sampling: how the rows were
    drawn; unless that is from the whole distribution, the shard needs the column `support`.
    router_replay: passes of the policy, the old one and the new, compute the experts of the column
    `routing`, which the shard then needs; the reference chooses its own.
    """

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        *,
        micro_batch_size: int | None = None,
        max_tokens_per_micro_batch: int | None = None,
        share_prompts: bool = False,
        temperature: float = 1.0,
        sampling: SamplingConfig | None = None,
        router_replay: bool = False,
        **options: Unpack[UpdateOptions],
    ) -> None:
        super().__init__(fsdp_backend, algorithm, micro_batch_size=micro_batch_size, **options)
        self.temperature = temperature
        self.sampling = sampling or SamplingConfig()
        self.router_replay = router_replay
        if router_replay:
            for model in fsdp_backend.models:
                model.enable_router_replay()
        self.packs = max_tokens_per_micro_batch is not None
        if self.packs:
            fsdp_backend.enable_packing()
        self.share_prompts = share_prompts and fsdp_backend.enable_prompt_sharing()
        if not (self.packs or self.share_prompts or fsdp_backend.pads):
            self.micro_batch_size = _one_row(algorithm)
        # Rows that are padded to the longest of a pass would be more than their tokens.
        may_fill = micro_batch_size is None and self.share_prompts
        products = fsdp_backend.device, DTYPES[fsdp_backend.fsdp_cfg.param_dtype]
        self.max_tokens = max_tokens_per_micro_batch or (
            _tokens_of_a_pass(*products) if may_fill else None
        )

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def measure(self, shard: DataProto) -> DataProto | None:
        """Return the measures of the policy that sampled that `StageAlgorithm.advantages` needs,
        before training.

        Returns: `old_log_probs`, and, if the algorithm needs them, `ref_log_probs` and
        `sum_squared_probs`, [B, T]; None on a rank that does not answer for its replica. `train`
        reuses those that it finds in its shard.
        """
        shard = shard.to(self.backend.device)
        plan, columns = self._plan(shard), {}
        with self.backend.anchor_policy() as anchor:
            old_BT = columns["old_log_probs"] = self._log_probs(anchor, shard, plan)
            if self.algorithm.needs_sum_squared_probs:
                # log p(t) = l_t - Z(l), so log sum p^2 = Z(2 l) - 2 Z(l) = 2 log p(t) - log p(t) at
                # half temperature.
                sharper_BT = self._log_probs(anchor, shard, plan, temperature=self.temperature / 2)
                columns["sum_squared_probs"] = (2 * old_BT - sharper_BT).exp() * (
                    shard.tensor("response_mask") != 0
                )
        if self.algorithm.kl_in_reward:
            with self.backend.reference_policy() as reference:
                columns["ref_log_probs"] = self._log_probs(reference, shard, plan, replays=False)
        if self.backend.rank_info.is_head:
            return DataProto.from_dict(columns)
        return None

    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Freeze the anchors of the updates: the old log-probabilities and the reference's.

        They are computed once, over the very micro-batches that are trained afterwards: the first
        ratio is exactly 1. With a single optimizer step per rollout the old policy is the current
        one: the anchor is then the forward of that step itself, detached, and nothing is computed
        here.
        """
        batch = shard.batch
        assert batch is not None
        if self.moves and batch.get("old_log_probs", None) is None:
            with self.backend.anchor_policy() as anchor:
                batch["old_log_probs"] = self._log_probs(anchor, shard, plan)
        if self.algorithm.needs_reference and batch.get("ref_log_probs", None) is None:
            with self.backend.reference_policy() as reference:
                batch["ref_log_probs"] = self._log_probs(reference, shard, plan, replays=False)

    def lengths(self, shard: DataProto) -> Lengths:
        """Return the tokens of prompt and reply."""
        used_BL = shard.tensor("attention_mask")
        tokens_B = used_BL.sum(-1).tolist()
        if not self.share_prompts:
            return Lengths(tokens_B)
        num_prompt = used_BL.shape[1] - shard.tensor("response_mask").shape[1]
        prompts = []
        for name in ("input_ids", "attention_mask", "position_ids"):
            prompts.append(shard.tensor(name)[:, :num_prompt])
        return Lengths(
            tokens_B, shared_prompts.leaders(*prompts).tolist(), prompts[1].sum(-1).tolist()
        )

    def take(self, shard: DataProto, rows: Rows) -> DataProto:
        """Return a micro-batch without columns that are padding in all rows."""
        return micro_batches.take(shard, rows)

    def _cut(self, units: list[Rows], lengths: Lengths, at_least: int = 0) -> list[Rows]:
        if self.max_tokens is None:
            return super()._cut(units, lengths, at_least)
        places, lengths_U = list(range(len(units))), [lengths.of(unit) for unit in units]
        if self.share_prompts:

            def saved(former: int, place: int) -> int:
                return lengths.saved(units[former][-1], units[place][0])

            cut = micro_batches.in_order_by_token_count(
                places, lengths_U, self.max_tokens, at_least, saved
            )
        else:
            cut = micro_batches.by_token_count(places, lengths_U, self.max_tokens, at_least)
        groups: list[Rows] = []
        for part in cut:
            groups.append(micro_batches.flatten([units[place] for place in part]))
        return groups

    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        return self._loss_of(
            micro, denominators, *self._forward(self.backend.policy, micro, with_entropy=True)
        )

    def _loss_of(
        self,
        micro: DataProto,
        denominators: Denominators,
        log_probs_BT: Tensor,
        entropy_BT: Tensor | None,
        **also: Unpack[ActionMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the loss of a forward pass. Args: also: further inputs of the algorithm's loss."""
        mask_BT = micro.tensor("response_mask")
        assert micro.batch is not None
        old_BT = micro.batch.get("old_log_probs", log_probs_BT.detach())
        micro.batch["old_log_probs"] = old_BT
        rollout_BT = micro.batch.get("rollout_log_probs", None)
        if self.algorithm.needs_rollout_log_probs:
            also["rollout_log_probs_BT"] = rollout_BT
        loss, metrics = self.algorithm.loss(
            log_probs_BT=log_probs_BT,
            old_log_probs_BT=old_BT,
            advantages_BT=micro.tensor("advantages"),
            mask_BT=mask_BT,
            ref_log_probs_BT=micro.batch.get("ref_log_probs", None),
            entropy_BT=entropy_BT,
            denominators=denominators,
            **also,
        )
        return loss, metrics | drift(old_BT, rollout_BT, mask_BT)

    def _log_probs(
        self,
        policy: nn.Module,
        shard: DataProto,
        plan: list[MiniBatch],
        temperature: float | None = None,
        *,
        replays: bool = True,
    ) -> Tensor:
        """Return log-probabilities [B, T], zero in rows that are not trained. Args: replays: False
        for a model that did not sample the rows."""
        log_probs_BT = torch.zeros(shard.tensor("response_mask").shape, device=self.backend.device)
        passes: list[Rows] = []
        for mini_batch in plan:
            if not mini_batch.is_empty:
                passes.extend(mini_batch.micro_batches)
        for rows in passes:
            micro = self.take(shard, rows)
            micro_BT = self._forward(
                policy, micro, with_entropy=False, temperature=temperature, replays=replays
            )[0]
            if rows:
                log_probs_BT[rows, : micro_BT.shape[1]] = micro_BT
        return log_probs_BT

    def _forward(
        self,
        policy: nn.Module,
        micro: DataProto,
        *,
        with_entropy: bool,
        temperature: float | None = None,
        reader: DistributionReader | None = None,
        replays: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        # A bundle of the user's may have a policy that knows no readers and no routing.
        also: dict[str, Any] = {} if reader is None else {"reader": reader}
        if self.router_replay and replays:
            also["routing_B"] = self._routing(micro)
        return policy(
            micro.tensor("input_ids"),
            micro.tensor("attention_mask"),
            micro.tensor("position_ids"),
            micro.tensor("response_mask"),
            temperature=temperature or self.temperature,
            with_entropy=with_entropy,
            entropy_grad=self.algorithm.needs_entropy,
            packed=self.packs,
            share_prompts=self.share_prompts,
            media_B=list(micro.non_tensor_batch.get("media", ())) or None,
            **self._restriction(micro),
            **also,
        )

    def _routing(self, micro: DataProto) -> list[np.ndarray | None]:
        """Return the experts of each row. Raises: ModelError when the rollout does not say them."""
        if ROUTING not in micro.non_tensor_batch:
            raise ModelError(
                f"rollout.router_replay: the engine's rollout has no column {ROUTING!r} with the "
                "experts of each token; leave the setting out, or use the project's own engine"
            )
        return list(micro.non_tensor_batch[ROUTING])

    def _restriction(self, micro: DataProto) -> dict[str, Restriction]:
        """Return how the rows were drawn, if not from the whole distribution.

        Raises: ModelError when the rollout does not say which tokens could be drawn.
        """
        sampling = self.sampling
        if sampling.keeps_all:
            return {}
        supports_B = None
        if sampling.leaves_out:
            if SUPPORT not in micro.non_tensor_batch:
                raise ModelError(
                    f"rollout.{sampling.leaves_out[0]}: the engine's rollout has no column "
                    f"{SUPPORT!r} with the tokens that could be drawn, so their log-probabilities "
                    "are not known; leave the setting out, or use the project's own engine"
                )
            supports_B = list(micro.non_tensor_batch[SUPPORT])
        return {"restriction": Restriction(sampling.repetition_penalty, supports_B)}


def _one_row(algorithm: StageAlgorithm) -> int:
    """Return the rows of a pass for a model without padding support. Raises: ModelError when rows
    have to stay together."""
    if algorithm.rows_per_unit > 1:
        raise ModelError(
            f"{type(algorithm).__name__} compares rows in one pass, which have to be padded to "
            "one length, and with padding this model gives something else; choose another model"
        )
    return 1


def _tokens_of_a_pass(device: torch.device, dtype: torch.dtype) -> int | None:
    """Return the tokens per pass that make products in this format fast on this device; None if a
    few rows do."""
    if device.type == "cuda":
        return TOKENS_ON_GPU
    if multiplies_in_tiles(device, dtype):
        return TOKENS_IN_TILES
    if multiplies_in_bfloat16(device, dtype):
        return TOKENS_IN_BFLOAT16
    return None
