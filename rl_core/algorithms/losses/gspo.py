"""GSPO (arXiv 2507.18071 eqs. 7 and 17): the ratio of whole rows, s = exp(mean_t d), clipped like
PPO's.

Each action has the row's ratio and its own gradient (s_t = sg(s) pi_t / sg(pi_t)), so advantages
may differ by action; with one advantage per row and `seq-mean-token-mean` the gradient is that of s
itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms import terms
from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses
from rl_core.algorithms.losses.ppo_clip import ClipConfig, is_clipped

if TYPE_CHECKING:
    from torch import Tensor


@policy_losses.register("gspo")
class GspoLoss(PolicyLoss):
    """GSPO: the clipped surrogate of each row."""

    vanishes_without_advantage: ClassVar[bool] = True

    class Config(ClipConfig):
        """Clip range of the row's ratio, narrow as in the paper, since a row's mean changes
        little."""

        clip_low: float = Field(default=3e-4, ge=0, le=1)
        """The row's ratio is clipped from below at 1 - clip_low."""
        clip_high: float = Field(default=4e-4, ge=0)
        """The row's ratio is clipped from above at 1 + clip_high."""
        aggregation: terms.Aggregation = terms.Aggregation.SEQ_MEAN_TOKEN_MEAN
        """Aggregation of the losses of single actions."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T], and `clip_fraction`."""
        config = self.config
        row_B1 = actions.row_mean(actions.log_ratio_BT.detach())
        row_ratio_BT = terms.ratio(
            actions.log_probs_BT - actions.log_probs_BT.detach() + row_B1, row_B1.new_zeros(())
        )
        loss_BT = terms.clipped_surrogate(
            row_ratio_BT, actions.advantages_BT, config.clip_low, config.clip_high
        )
        clipped_BT = is_clipped(
            row_ratio_BT, actions.advantages_BT, config.clip_low, config.clip_high
        )
        return loss_BT, {"clip_fraction": clipped_BT}
