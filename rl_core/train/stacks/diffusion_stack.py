"""The stack of a diffusion model whose actions are denoising steps: replayed, scored and trained
like tokens.

Shapes: B rows of K actions, N = B K latents that run forward together, those of one row adjacent.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.models.diffusion.levels import noise_levels
from rl_core.models.diffusion.policy import Noisy
from rl_core.sde import SdeConfig, Step, action_step, gaussian_kl, gaussian_log_prob
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.micro_batches import Lengths, MiniBatch, Rows
from rl_core.train.stacks.segments import SegmentStack, StackOptions, drift
from schemas.sections.diffusion import DiffusionConfig


class DiffusionStack(SegmentStack):
    """A SegmentStack over latents, called with the guidance of the rollout.

    The shard also needs `sigmas` [B, K] and the object column `conditions`.
    """

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        config: DiffusionConfig,
        **options: Unpack[StackOptions],
    ) -> None:
        super().__init__(fsdp_backend, algorithm, **options)
        self.config, self.family = config, fsdp_backend.bundle.family

    def open(self, shard: DataProto) -> tuple[DataProto, list[MiniBatch]]:
        """Split each row into portions of `steps_per_forward` actions."""
        num_actions = shard.tensor("response_mask").shape[1]
        size = self.config.steps_per_forward or num_actions
        if size < num_actions:
            if num_actions % size:
                raise ValueError(
                    f"diffusion.steps_per_forward {size} does not divide the {num_actions} "
                    "trained steps"
                )
            shard = shard.unfold_column_chunks(num_actions // size, _per_action(shard))
        return super().open(shard)

    def lengths(self, shard: DataProto) -> Lengths:
        """Return equal costs for all rows of a rollout."""
        return Lengths([1] * len(shard))

    def take(self, shard: DataProto, rows: Rows) -> DataProto:
        """Return the rows; for no rows, one without a set mask."""
        if rows:
            return shard[rows]
        idle = shard[[0]]
        assert idle.batch is not None
        idle.batch["response_mask"] = torch.zeros_like(idle.tensor("response_mask"))
        return idle

    def velocities(self, policy: nn.Module, micro: DataProto, latents_N: Tensor) -> Tensor:
        """Return velocities [N, ...] at the levels of the rows' actions."""
        sigmas_BK = micro.tensor("sigmas")
        conditions = list(micro.non_tensor_batch["conditions"])
        told = self.backend.policy.conditions_of(
            conditions, sigmas_BK.shape[1], self.config.guidance_scale
        )
        told = {name: value.to(self.backend.device) for name, value in told.items()}
        return policy(Noisy(latents_N, sigmas_BK.flatten(), told), self.config.guidance_scale)

    def over(self, plan: list[MiniBatch]) -> list[Rows]:
        """Return every pass of a plan, including idle ones."""
        micro_batches: list[Rows] = []
        for mini_batch in plan:
            if not mini_batch.is_empty:
                micro_batches.extend(mini_batch.micro_batches)
        return micro_batches


class StepStack(DiffusionStack):
    """Policy gradients: an action is a stochastic step, its log-probability the kernel's.

    The shard also needs `latents, next_latents` [B, K, ...] and `next_sigmas, rollout_log_probs`
    [B, K].
    """

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        config: DiffusionConfig,
        sde: SdeConfig,
        **options: Unpack[StackOptions],
    ) -> None:
        super().__init__(fsdp_backend, algorithm, config, **options)
        self.sde = sde
        self.sigma_first = float(noise_levels(self.family, config, config.num_steps)[1])

    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Freeze the old policy's and the reference's means of every step.

        As with tokens, a single optimizer step per rollout needs no old policy, whose place its own
        detached forward takes.
        """
        batch = shard.batch
        assert batch is not None
        if self.moves:
            with self.backend.anchor_policy() as anchor:
                batch["old_means"] = self._means(anchor, shard, plan)
        if self.algorithm.needs_reference:
            with self.backend.reference_policy() as reference:
                batch["ref_means"] = self._means(reference, shard, plan)

    def replay(self, policy: nn.Module, micro: DataProto) -> Step:
        """Recompute the steps of some rows, N of them, scored by a policy."""
        latents_N, next_N = (
            micro.tensor("latents").flatten(0, 1),
            micro.tensor("next_latents").flatten(0, 1),
        )
        return action_step(
            self.sde,
            latents_N,
            self.velocities(policy, micro, latents_N),
            micro.tensor("sigmas").flatten(),
            micro.tensor("next_sigmas").flatten(),
            sigma_first=self.sigma_first,
            next_sample=next_N,
        )

    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        mask_BK, rollout_BK = micro.tensor("response_mask"), micro.tensor("rollout_log_probs")
        step, batch, algorithm = (
            self.replay(self.backend.policy, micro),
            micro.batch,
            self.algorithm,
        )
        assert batch is not None and step.log_prob is not None
        old_mean = batch.get(
            "old_means", step.mean.detach().view_as(micro.tensor("latents"))
        ).flatten(0, 1)
        old_BK = gaussian_log_prob(step.sample, old_mean, step.std).view_as(mask_BK)
        batch["old_log_probs"] = old_BK.detach()
        measured, ref_BK = {}, None
        if algorithm.needs_rollout_log_probs:
            measured["rollout_log_probs_BT"] = rollout_BK
        if algorithm.needs_old_kl:
            measured["old_kl_BT"] = gaussian_kl(step.mean, old_mean, step.std).view_as(mask_BK)
        if algorithm.needs_reference:
            ref_mean = micro.tensor("ref_means").flatten(0, 1)
            ref_BK = gaussian_log_prob(step.sample, ref_mean, step.std).view_as(mask_BK)
            measured["ref_kl_BT"] = gaussian_kl(step.mean, ref_mean, step.std).view_as(mask_BK)
        loss, metrics = algorithm.loss(
            log_probs_BT=step.log_prob.view_as(mask_BK),
            old_log_probs_BT=old_BK,
            advantages_BT=micro.tensor("advantages"),
            mask_BT=mask_BK,
            ref_log_probs_BT=ref_BK,
            entropy_BT=None,
            denominators=denominators,
            **measured,
        )
        return loss, metrics | drift(old_BK, rollout_BK, mask_BK)

    def _means(self, policy: nn.Module, shard: DataProto, plan: list[MiniBatch]) -> Tensor:
        """Return the means, [B, K, ...], zero in rows that are not trained."""
        means = torch.zeros_like(shard.tensor("latents"))
        for rows in self.over(plan):
            found_N = self.replay(policy, self.take(shard, rows)).mean
            if rows:
                means[rows] = found_N.view(len(rows), *means.shape[1:])
        return means


def _per_action(shard: DataProto) -> list[str]:
    """Return the columns with a value per action."""
    names = (
        *("latents", "next_latents", "sigmas", "next_sigmas", "rollout_log_probs", "noise_seeds"),
        *("response_mask", "advantages", "turn_rewards"),
    )
    assert shard.batch is not None
    return [name for name in names if name in shard.batch.keys()]  # noqa: SIM118
