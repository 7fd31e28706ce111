"""DPPO (arXiv 2602.04879): -A sg(min(rho, c)) log pi, on actions that are still near the old policy
or move back to it.

The distance is that of the action against all others, from the two probabilities p (current) and q
(old): `dppo_tv` uses the total variation |p - q|, `dppo_kl` KL = q log(q/p) + (1 - q) log((1 -
q)/(1 - p)). A ratio says little about a rare token and too much about a frequent one; the
divergence treats both alike.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

if TYPE_CHECKING:
    from torch import Tensor

MIN_COMPLEMENT = 1e-8
"""Lower bound of 1 - p, so that a certain token has a finite divergence."""


class DppoLoss(PolicyLoss):
    """DPPO: REINFORCE with truncated weights inside a divergence's trust region."""

    vanishes_without_advantage: ClassVar[bool] = True

    class Config(PolicyLoss.Config):
        """Trust region of DPPO."""

        delta: float = Field(default=0.2, gt=0)
        """Largest divergence at which an action may still move away."""
        max_ratio: float = Field(default=20.0, gt=1)
        """Upper bound of the importance weight."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T], and `clip_fraction`, the share of dropped actions."""
        far_BT = (
            self.divergence(actions.log_probs_BT.detach(), actions.old_log_probs_BT)
            > self.config.delta
        )
        dropped_BT = far_BT & actions.moves_away_BT
        weight_BT = actions.ratio_BT.detach().clamp(max=self.config.max_ratio)
        loss_BT = -actions.advantages_BT * weight_BT * actions.log_probs_BT
        return loss_BT.masked_fill(dropped_BT, 0.0), {"clip_fraction": dropped_BT}

    @abstractmethod
    def divergence(self, log_probs_BT: Tensor, old_log_probs_BT: Tensor) -> Tensor:
        """Return the divergence of old and new policy, for the action against all others, [B,
        T]."""


@policy_losses.register("dppo_tv")
class DppoTvLoss(DppoLoss):
    """DPPO with the total variation."""

    def divergence(self, log_probs_BT: Tensor, old_log_probs_BT: Tensor) -> Tensor:
        """Return |p - q|, [B, T]."""
        return (log_probs_BT.exp() - old_log_probs_BT.exp()).abs()


@policy_losses.register("dppo_kl")
class DppoKlLoss(DppoLoss):
    """DPPO with the binary KL."""

    class Config(DppoLoss.Config):
        """Trust region of DPPO with the binary KL."""

        delta: float = Field(default=0.05, gt=0)
        """Largest divergence at which an action may still move away."""

    def divergence(self, log_probs_BT: Tensor, old_log_probs_BT: Tensor) -> Tensor:
        """Return q log(q/p) + (1 - q) log((1 - q)/(1 - p)), [B, T]."""
        old_BT = old_log_probs_BT.exp()
        others_BT = (-log_probs_BT.expm1()).clamp(min=MIN_COMPLEMENT)
        old_others_BT = (-old_log_probs_BT.expm1()).clamp(min=MIN_COMPLEMENT)
        return (
            old_BT * (old_log_probs_BT - log_probs_BT)
            + old_others_BT * (old_others_BT / others_BT).log()
        )
