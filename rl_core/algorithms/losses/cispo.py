"""CISPO (arXiv 2506.13585 eq. 4): -sg(clip(rho, 1 - clip_low, 1 + clip_high)) A log pi.

The weight is clipped, not the update: every action keeps a gradient, however far the policy has
moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses
from rl_core.algorithms.losses.ppo_clip import ClipConfig

if TYPE_CHECKING:
    from torch import Tensor


@policy_losses.register("cispo")
class CispoLoss(PolicyLoss):
    """CISPO: REINFORCE with clipped importance weights."""

    vanishes_without_advantage: ClassVar[bool] = True

    class Config(ClipConfig):
        """Bounds of the weight. As published, only the upper bound has an effect."""

        clip_low: float = Field(default=1.0, ge=0, le=1)
        """The weight is at least 1 - clip_low."""
        clip_high: float = Field(default=4.0, ge=0)
        """The weight is at most 1 + clip_high."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T], and `clip_fraction`, the share of clipped weights."""
        ratio_BT = actions.ratio_BT.detach()
        weight_BT = ratio_BT.clamp(1.0 - self.config.clip_low, 1.0 + self.config.clip_high)
        return -weight_BT * actions.advantages_BT * actions.log_probs_BT, {
            "clip_fraction": weight_BT != ratio_BT
        }
