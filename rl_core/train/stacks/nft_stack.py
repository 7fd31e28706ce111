"""The stack of DiffusionNFT: a finished sample is noised again, and the velocities there are
trained.

Shapes: B rows of K noised copies, N = B K, those of one row adjacent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.algorithms.diffusion_nft import nft_errors
from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.train.micro_batches import MiniBatch
from rl_core.train.stacks.diffusion_stack import DiffusionStack


class NftStack(DiffusionStack):
    """A DiffusionStack whose shard also needs `clean` [B, ...] and `noise_seeds` [B, K]."""

    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Freeze the velocities of the policy that sampled: the average, which changes with each
        update."""
        assert shard.batch is not None
        clean, num_copies = shard.tensor("clean"), shard.tensor("sigmas").shape[1]
        old = torch.zeros(len(shard), num_copies, *clean.shape[1:], device=clean.device)
        with self.backend.anchor_policy() as anchor:
            for rows in self.over(plan):
                micro = self.take(shard, rows)
                found_N = self.velocities(anchor, micro, self._noisy(micro))
                if rows:
                    old[rows] = found_N.view(len(rows), *old.shape[1:])
        shard.batch["old_velocities"] = old

    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        mask_BK, sigmas_BK = micro.tensor("response_mask"), micro.tensor("sigmas")
        config: Any = self.algorithm.config
        noisy_N = self._noisy(micro)
        positive_N, negative_N = nft_errors(
            self.velocities(self.backend.policy, micro, noisy_N),
            micro.tensor("old_velocities").flatten(0, 1),
            noisy_N,
            micro.tensor("clean").repeat_interleave(sigmas_BK.shape[1], 0),
            sigmas_BK.flatten(),
            config.beta,
        )
        unused: Any = None
        return self.algorithm.loss(
            log_probs_BT=unused,
            old_log_probs_BT=unused,
            advantages_BT=micro.tensor("advantages"),
            mask_BT=mask_BK,
            ref_log_probs_BT=None,
            entropy_BT=None,
            denominators=denominators,
            positive_errors_BT=positive_N.view_as(mask_BK),
            negative_errors_BT=negative_N.view_as(mask_BK),
        )

    @classmethod
    def _noisy(cls, micro: DataProto) -> Tensor:
        """Return (1 - t) x_0 + t eps, [N, ...]."""
        clean, sigmas_N = micro.tensor("clean"), micro.tensor("sigmas").flatten()
        noise = cls._noise(micro)
        level = sigmas_N.view(-1, *[1] * (clean.ndim - 1))
        copies = clean.repeat_interleave(len(noise) // len(clean), 0)
        return (1 - level) * copies + level * noise

    @staticmethod
    def _noise(micro: DataProto) -> Tensor:
        """Return eps, [N, ...], drawn on the CPU by each copy's own seed, the same for every
        layout."""
        clean, seeds_N = micro.tensor("clean"), micro.tensor("noise_seeds").flatten().tolist()
        return torch.stack(
            [
                torch.randn(clean.shape[1:], generator=torch.Generator().manual_seed(seed))
                for seed in seeds_N
            ]
        ).to(clean)
