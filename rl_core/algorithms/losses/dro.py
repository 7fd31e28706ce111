"""DRO (arXiv 2405.19107 eq. 5, with the advantage in place of reward minus value): -(A log pi -
beta/2 d^2).

A squared log-ratio keeps the policy near the old one, so rows may be off-policy and no ratio is
needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

if TYPE_CHECKING:
    from torch import Tensor


@policy_losses.register("dro")
class DroLoss(PolicyLoss):
    """DRO: REINFORCE with a quadratic penalty on the log-ratio."""

    class Config(PolicyLoss.Config):
        """Penalty of DRO."""

        beta: float = Field(default=0.05, ge=0)
        """Weight of the squared log-ratio."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each action, [B, T]."""
        leash_BT = 0.5 * self.config.beta * actions.log_ratio_BT.square()
        return leash_BT - actions.advantages_BT * actions.log_probs_BT, {}
