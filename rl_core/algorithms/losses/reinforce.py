"""REINFORCE (Williams 1992): -A log pi. The gradient is only right for rows sampled by the current
policy: one update each.

`gpg` is the same loss under the name of GPG (arXiv 2504.02546), which differs in its advantage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

if TYPE_CHECKING:
    from torch import Tensor


@policy_losses.register("gpg")
@policy_losses.register("reinforce")
class ReinforceLoss(PolicyLoss):
    """REINFORCE: the plain policy gradient."""

    supports_multi_update: ClassVar[bool] = False
    vanishes_without_advantage: ClassVar[bool] = True

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each action, [B, T]."""
        return -actions.advantages_BT * actions.log_probs_BT, {}
