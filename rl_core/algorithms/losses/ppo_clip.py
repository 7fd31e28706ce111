"""PPO's clipped surrogate (arXiv 1707.06347 eq. 7): max(-A rho, -A clip(rho, 1 - clip_low, 1 +
clip_high)).

DAPO raises the upper bound alone (arXiv 2503.14476 eq. 10). `dual_clip` c bounds the loss of
actions with A < 0 by -A c (arXiv 1912.09729 eq. 5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms import terms
from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

if TYPE_CHECKING:
    from torch import Tensor


class ClipConfig(PolicyLoss.Config):
    """Clip range of the ratio."""

    clip_low: float = Field(default=0.2, ge=0, le=1)
    """The ratio is clipped from below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, ge=0)
    """The ratio is clipped from above at 1 + clip_high; DAPO uses 0.28."""


def is_clipped(
    ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """Return True where the clip stops the gradient: past the upper bound with A > 0, past the
    lower one with A < 0."""
    above_BT = (ratio_BT > 1.0 + clip_high) & (advantages_BT > 0)
    return above_BT | ((ratio_BT < 1.0 - clip_low) & (advantages_BT < 0))


@policy_losses.register("ppo_clip")
class PpoClipLoss(PolicyLoss):
    """PPO: the clipped surrogate of each action."""

    vanishes_without_advantage: ClassVar[bool] = True

    class Config(ClipConfig):
        """Clip range and dual clip."""

        dual_clip: float | None = Field(default=None, gt=1)
        """Factor of -A that bounds the loss of actions with negative advantage; unset turns it
        off."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T], and `clip_fraction`."""
        config = self.config
        loss_BT = terms.clipped_surrogate(
            actions.ratio_BT,
            actions.advantages_BT,
            config.clip_low,
            config.clip_high,
            config.dual_clip,
        )
        clipped_BT = is_clipped(
            actions.ratio_BT, actions.advantages_BT, config.clip_low, config.clip_high
        )
        return loss_BT, {"clip_fraction": clipped_BT}
