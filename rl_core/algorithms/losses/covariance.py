"""Losses against entropy collapse (arXiv 2505.22617), which is mainly caused by the few actions
with a high covariance of log-probability and advantage, c = (A - mean A)(log pi - mean log pi).

`clip_cov` is PPO's clip with some random actions of high covariance detached; `kl_cov` is the
unclipped surrogate with a KL penalty on the actions of highest covariance. Both means are over the
micro-batch, and so is the choice: only these two losses depend on how a step is cut into
micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

from pydantic import Field

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses
from rl_core.algorithms.losses.ppo_clip import PpoClipLoss

if TYPE_CHECKING:
    from torch import Tensor


def covariances(actions: Actions) -> Tensor:
    """Return c of each action, [B, T], without gradient; -inf where the mask is 0."""
    kept_BT = actions.mask_BT
    count = kept_BT.sum().clamp(min=1)
    advantages_BT, log_probs_BT = actions.advantages_BT, actions.log_probs_BT.detach()
    centred_BT = advantages_BT - advantages_BT.sum() / count
    return (centred_BT * (log_probs_BT - log_probs_BT.sum() / count)).masked_fill(
        ~kept_BT, float("-inf")
    )


@policy_losses.register("clip_cov")
class ClipCovLoss(PpoClipLoss):
    """PPO's clip with some actions of high covariance detached."""

    splits_exactly: ClassVar[bool] = False

    class Config(PpoClipLoss.Config):
        """Selection of the detached actions."""

        detached_share: float = Field(default=2e-4, ge=0, le=1)
        """Share of all actions that is detached (at least one, if any is in the range)."""
        min_covariance: float = 1.0
        """Lower end of the covariance range."""
        max_covariance: float = 5.0
        """Upper end of the covariance range."""
        seed: int = 0
        """Seed of the random choice; together with the numbers of the micro-batch it determines the
        chosen actions."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T], `clip_fraction` and `detached_fraction`."""
        loss_BT, logged = super().per_action(actions)
        covariance_BT = covariances(actions)
        in_range_BT = (covariance_BT >= self.config.min_covariance) & (
            covariance_BT <= self.config.max_covariance
        )
        chosen_BT = self._choose(in_range_BT & ~logged["clip_fraction"], actions)
        return loss_BT.detach().where(chosen_BT, loss_BT), {
            **logged,
            "detached_fraction": chosen_BT,
        }

    def _choose(self, eligible_BT: Tensor, actions: Actions) -> Tensor:
        import torch

        places_N = eligible_BT.flatten().nonzero()[:, 0].cpu()
        wanted = min(
            max(int(self.config.detached_share * int(actions.mask_BT.sum())), 1), len(places_N)
        )
        # The numbers enter the seed, or the same places of every micro-batch would be taken at
        # every step.
        mark = f"{self.config.seed}/{float(actions.log_probs_BT.detach().double().sum())!r}"
        generator = torch.Generator().manual_seed(crc32(mark.encode()))
        chosen_N = places_N[torch.randperm(len(places_N), generator=generator)[:wanted]]
        chosen = torch.zeros(eligible_BT.numel(), dtype=torch.bool)
        chosen[chosen_N] = True
        return chosen.view(eligible_BT.shape).to(eligible_BT.device)


@policy_losses.register("kl_cov")
class KlCovLoss(PolicyLoss):
    """The unclipped surrogate, with a KL penalty on the actions of highest covariance."""

    splits_exactly: ClassVar[bool] = False

    class Config(PolicyLoss.Config):
        """Selection of the penalised actions, and the penalty."""

        penalised_share: float = Field(default=2e-4, ge=0, le=1)
        """Share of all actions that is penalised (at least one)."""
        penalty: float = Field(default=1.0, ge=0)
        """Weight of |log pi - log pi_old| on the penalised actions."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T] and `penalised_fraction`."""
        covariance_BT = covariances(actions)
        num_actions = int(actions.mask_BT.sum())
        wanted = min(max(int(self.config.penalised_share * num_actions), 1), num_actions)
        chosen = covariance_BT.new_zeros(covariance_BT.numel()).bool()
        chosen[covariance_BT.flatten().topk(wanted).indices] = True
        chosen_BT = chosen.view(covariance_BT.shape)
        loss_BT = -actions.advantages_BT * actions.ratio_BT
        penalised_BT = loss_BT + self.config.penalty * actions.log_ratio_BT.abs()
        return penalised_BT.where(chosen_BT, loss_BT), {"penalised_fraction": chosen_BT}
