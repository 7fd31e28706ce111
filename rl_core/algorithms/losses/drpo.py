"""DRPO (arXiv 2606.09821): -A rho + |A| q (rho - 1)^2 / (2 eps), q = pi_old of the action.

The penalty's minimum lies at rho = 1 + sign(A) eps / q, a bound on the change of the probability
itself, and its gradient grows smoothly past it where a clip's vanishes. With `weigh_by_probability:
false` q is 1: SPO (arXiv 2401.16025 eq. 15), whose eps is a bound of the ratio (0.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

if TYPE_CHECKING:
    from torch import Tensor


@policy_losses.register("drpo")
class DrpoLoss(PolicyLoss):
    """DRPO: the surrogate with a quadratic penalty in place of the clip."""

    vanishes_without_advantage: ClassVar[bool] = True

    class Config(PolicyLoss.Config):
        """Penalty of DRPO."""

        eps: float = Field(default=12.5, gt=0)
        """Change of the ratio (times pi_old) at which the penalty outweighs the gain."""
        weigh_by_probability: bool = True
        """Multiply the penalty by pi_old; false gives SPO."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T], and `trust_penalty`, the penalty's mean."""
        advantages_BT, ratio_BT = actions.advantages_BT, actions.ratio_BT
        penalty_BT = advantages_BT.abs() * (ratio_BT - 1.0).square() / (2.0 * self.config.eps)
        if self.config.weigh_by_probability:
            penalty_BT = penalty_BT * actions.old_log_probs_BT.exp()
        return penalty_BT - advantages_BT * ratio_BT, {"trust_penalty": penalty_BT}
