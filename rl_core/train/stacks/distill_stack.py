"""The stack of a language model that learns from teachers: a TrainStack that also reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.distillation import DistillationConfig, Vocabulary, divergence
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto, pad_rows
from rl_core.models.decoding.decode import positions_of
from rl_core.models.decoding.distributions import (
    ComparedDistribution,
    Distribution,
    KeptDistribution,
)
from rl_core.ranks.dispatch import Collect, Dispatch, distributed
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.micro_batches import MiniBatch
from rl_core.train.stacks.token_stack import TrainStack
from rl_core.train.teacher import Teacher

TEACHER = "teacher"
"""Column with the number of each row's teacher among the stack's, [B]; -1 for one that is asked
elsewhere. Without it all rows have the first one."""
TEACHER_PROMPT = "teacher_prompt"
"""Object column with the tokens of the prompt that a row's teacher reads; None for its own."""
SERVED = "served_log_probs"
"""Column with the log-probabilities of teachers that were asked elsewhere, 0 in other rows."""
SAID, ENTROPY = "teacher_log_probs", "teacher_entropy"
"""Columns of the teacher's log-probabilities of the sampled tokens, and its entropies, [B, T]."""
KEPT, KEPT_IDS = "teacher_kept", "teacher_kept_ids"
"""Columns of the teacher's distributions, [B, T, K], as in `Distribution`."""


class DistillStack(TrainStack):
    """A TrainStack over the samples of a policy that teachers judge.

    Distributions of teachers with weights of their own are read beside each training pass. Those of
    the policy's own weights are read before the first pass and kept for all rows.

    Args: teachers: read by number; see `TEACHER`.
    """

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        *,
        teachers: Sequence[Teacher],
        pad_id: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(fsdp_backend, algorithm, **options)
        self.teachers = tuple(teachers)
        self.pad_id = fsdp_backend.bundle.tokenizer.pad_token_id if pad_id is None else pad_id
        self._ready = False
        self._may_share = True

    @property
    def config(self) -> DistillationConfig:
        """The algorithm's block."""
        return self.algorithm.config

    @property
    def keeps(self) -> bool:
        """True if distributions are read before the first pass."""
        return any(teacher.is_own for teacher in self.teachers)

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def measure(self, shard: DataProto) -> DataProto | None:
        """Return what `TrainStack.measure` does, and the teachers' `teacher_log_probs` and
        `teacher_entropy`, [B, T]; the latter only if no teacher was asked elsewhere."""
        found = super().measure(shard)
        shard = shard.to(self.backend.device)
        said_BT, entropy_BT = self._read(shard, self._plan(shard))
        columns = {SAID: said_BT, ENTROPY: entropy_BT}
        if shard.batch is not None and SERVED in shard.batch:
            columns = {SAID: said_BT + shard.tensor(SERVED).to(said_BT)}
        if found is None:
            return None
        return found.union(DataProto.from_dict(columns))

    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Freeze the anchors of the updates, and the distributions of the policy's own weights."""
        super().prepare_segment(shard, plan)
        if not (self.algorithm.compares_distributions and self.keeps):
            return
        batch, mask_BT = shard.batch, shard.tensor("response_mask")
        assert batch is not None
        for rows in _passes(plan):
            micro = self.take(shard, rows)
            found, entropy_N = self._distribution(micro)
            keep_BT = micro.tensor("response_mask").bool()
            columns: dict[str, Tensor | None] = {
                ENTROPY: entropy_N,
                KEPT: found.log_probs_NK,
                KEPT_IDS: found.ids_NK,
            }
            for name, values in columns.items():
                if values is None or not rows:
                    continue
                if name not in batch:
                    batch[name] = values.new_zeros(*mask_BT.shape, *values.shape[1:])
                width = keep_BT.shape[1]
                spread = values.new_zeros(*keep_BT.shape, *values.shape[1:])
                spread[keep_BT] = values
                batch[name][rows, :width] = spread

    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        if not self.algorithm.compares_distributions:
            return super()._loss(micro, denominators)
        keep_BT = micro.tensor("response_mask").bool()
        taught, entropy_N = self._kept(micro) if self.keeps else self._distribution(micro)
        reader = ComparedDistribution(
            taught, partial(divergence, kind=self.config.divergence, beta=self.config.beta)
        )
        log_probs_BT, apart_BT = self._forward(
            self.backend.policy, micro, with_entropy=True, reader=reader
        )
        own_BT = torch.zeros_like(log_probs_BT).masked_scatter(keep_BT, reader.entropy_N)
        loss, metrics = self._loss_of(
            micro, denominators, log_probs_BT, own_BT, teacher_divergence_BT=apart_BT
        )
        seen_N = torch.ones_like(entropy_N)
        if taught.ids_NK is not None:
            seen_N = -taught.log_probs_NK[:, -1].expm1()
        means = {"teacher_kl": reader.kl_N, ENTROPY: entropy_N, "teacher_coverage": seen_N}
        count = float(keep_BT.sum())
        return loss, metrics | {
            name: Metric(MetricKind.MEAN, float(values_N.double().sum()), count)
            for name, values_N in means.items()
        }

    def _kept(self, micro: DataProto) -> tuple[Distribution, Tensor]:
        keep_BT = micro.tensor("response_mask").bool()
        width, batch = keep_BT.shape[1], micro.batch
        assert batch is not None
        if KEPT not in batch:
            # This rank has no row to compute, and passes without rows see nothing.
            empty = torch.zeros(0, 1, device=keep_BT.device)
            return Distribution(empty), empty[:, 0]
        kept = {}
        for name in (KEPT, KEPT_IDS, ENTROPY):
            if name in batch:
                kept[name] = batch[name][:, :width][keep_BT]
        return Distribution(kept[KEPT], kept.get(KEPT_IDS)), kept[ENTROPY]

    def _distribution(self, micro: DataProto) -> tuple[Distribution, Tensor]:
        """Return the teachers' distributions at the trained positions, and their entropies, [N]."""
        joined: Distribution | None = None
        keep_BT = micro.tensor("response_mask").bool()
        entropy_BT = torch.zeros(keep_BT.shape, device=keep_BT.device)
        top_k = self.config.top_k if self.config.vocabulary is Vocabulary.TOP_K else None
        for number, teacher in enumerate(self.teachers):
            part = self._read_by(micro, number)
            reader = KeptDistribution(top_k, self._num_words)
            _, entropies_BT = self._pass(teacher, part, reader)
            assert reader.kept is not None
            if len(self.teachers) == 1:
                return reader.kept, entropies_BT[keep_BT]
            entropy_BT = entropy_BT + entropies_BT
            places_N = part.tensor("response_mask").bool()[keep_BT]
            if joined is None:
                num, width = len(places_N), reader.kept.log_probs_NK.shape[1]
                ids_NK = reader.kept.ids_NK
                joined = Distribution(
                    reader.kept.log_probs_NK.new_zeros(num, width),
                    None if ids_NK is None else ids_NK.new_zeros(num, ids_NK.shape[1]),
                )
            joined = joined.put(places_N, reader.kept)
        assert joined is not None, "a served teacher has no distributions"
        return joined, entropy_BT[keep_BT]

    def _read(self, shard: DataProto, plan: list[MiniBatch]) -> tuple[Tensor, Tensor]:
        """Return the teachers' log-probabilities and entropies, [B, T], zero in other rows."""
        shape = shard.tensor("response_mask").shape
        said_BT, entropy_BT = (torch.zeros(shape, device=self.backend.device) for _ in range(2))
        for number, teacher in enumerate(self.teachers):
            for rows in _passes(plan):
                part = self._read_by(self.take(shard, rows), number)
                log_probs, entropies = self._pass(teacher, part)
                if rows:
                    said_BT[rows, : log_probs.shape[1]] += log_probs
                    entropy_BT[rows, : log_probs.shape[1]] += entropies
        return said_BT, entropy_BT

    def _pass(
        self, teacher: Teacher, micro: DataProto, reader: KeptDistribution | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a teacher's log-probabilities and entropies, [B, T]."""
        self._get_ready()
        shares, self.share_prompts = self.share_prompts, self.share_prompts and self._may_share
        try:
            with teacher.policy() as policy:
                said_BT, entropy_BT = self._forward(
                    policy, micro, with_entropy=True, reader=reader, replays=False
                )
        finally:
            self.share_prompts = shares
        assert entropy_BT is not None
        return said_BT.detach(), entropy_BT.detach()

    def _get_ready(self) -> None:
        if not self._ready:
            shared = []
            for one in self.teachers:
                shared.append(one.prepare(packs=self.packs, shares_prompts=self.share_prompts))
            self._may_share, self._ready = all(shared), True

    @property
    def _num_words(self) -> int:
        """Number of tokens that the student may sample, from the first."""
        policy = self.backend.policy
        return policy.num_choices or policy.language_model.config.get_text_config().vocab_size

    def _read_by(self, micro: DataProto, number: int) -> DataProto:
        """Return the rows as one teacher reads them; those of others train nothing."""
        batch = micro.batch
        assert batch is not None
        mask_BT = micro.tensor("response_mask")
        if TEACHER in batch:
            mask_BT = mask_BT * (micro.tensor(TEACHER) == number)[:, None].to(mask_BT)
        columns = dict(batch.items()) | {"response_mask": mask_BT}
        prompts = micro.non_tensor_batch.get(TEACHER_PROMPT)
        if prompts is not None and any(prompt is not None for prompt in prompts):
            columns |= self._with_prompts(micro, list(prompts))
        return DataProto.from_dict(columns, micro.non_tensor_batch, micro.meta_info)

    def _with_prompts(
        self, micro: DataProto, prompts: Sequence[list[int] | None]
    ) -> dict[str, Tensor]:
        """Return the columns of the inputs with other prompts before the same replies."""
        input_ids, used = micro.tensor("input_ids"), micro.tensor("attention_mask")
        num_prompt = input_ids.shape[1] - micro.tensor("response_mask").shape[1]
        own = [
            ids[mask.bool()]
            for ids, mask in zip(input_ids[:, :num_prompt], used[:, :num_prompt], strict=True)
        ]
        read = []
        for mine, prompt in zip(own, prompts, strict=True):
            read.append(mine if prompt is None else torch.tensor(prompt, device=mine.device))
        width = max(len(ids) for ids in read)
        mask = pad_rows([torch.ones_like(ids) for ids in read], 0, left=True, length=width)
        attention = torch.cat([mask.to(used), used[:, num_prompt:]], 1)
        left = pad_rows(read, self.pad_id, left=True, length=width).to(input_ids)
        return {
            "input_ids": torch.cat([left, input_ids[:, num_prompt:]], 1),
            "attention_mask": attention,
            "position_ids": positions_of(attention),
        }


def _passes(plan: list[MiniBatch]) -> list[list[int]]:
    passes: list[list[int]] = []
    for mini_batch in plan:
        if not mini_batch.is_empty:
            passes.extend(mini_batch.micro_batches)
    return passes
