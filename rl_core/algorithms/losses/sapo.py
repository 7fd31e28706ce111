"""SAPO (arXiv 2511.20347 eqs. 5-6): -A (4/tau) sigmoid(tau (rho - 1)), a soft gate in place of the
clip.

At rho = 1 the gradient is REINFORCE's; it fades on both sides, faster for A < 0 when `tau_negative`
is larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms import terms
from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

if TYPE_CHECKING:
    from torch import Tensor


@policy_losses.register("sapo")
class SapoLoss(PolicyLoss):
    """SAPO: a sigmoid gate on the ratio."""

    vanishes_without_advantage: ClassVar[bool] = True

    class Config(PolicyLoss.Config):
        """Temperatures of the gate."""

        tau_positive: float = Field(default=1.0, gt=0)
        """Temperature for A > 0."""
        tau_negative: float = Field(default=1.05, gt=0)
        """Temperature for other actions."""
        aggregation: terms.Aggregation = terms.Aggregation.SEQ_MEAN_TOKEN_MEAN
        """Aggregation of the losses of single actions."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each action, [B, T]; nothing is clipped, so nothing is logged."""
        positive_BT = actions.advantages_BT > 0
        tau_BT = actions.advantages_BT.new_full((), self.config.tau_positive).where(
            positive_BT, self.config.tau_negative
        )
        gate_BT = (4.0 / tau_BT) * (tau_BT * (actions.ratio_BT - 1.0)).sigmoid()
        return -actions.advantages_BT * gate_BT, {}
