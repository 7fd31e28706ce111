"""GMPO (arXiv 2507.20673 eq. 4): the geometric mean of the ratios of a row, -A exp(mean_t d_t),
with each d_t clipped on the side that its advantage pushes to: at most clip_high for A > 0, at
least -clip_low for A < 0.

A single outlier changes a geometric mean little, so the range can be wide. The loss belongs to a
row: each of its actions has the same value, and `seq-mean-token-mean` counts it once per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms import terms
from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

if TYPE_CHECKING:
    from torch import Tensor


@policy_losses.register("gmpo")
class GmpoLoss(PolicyLoss):
    """GMPO: the geometric mean of the clipped ratios of each row."""

    vanishes_without_advantage: ClassVar[bool] = True

    class Config(PolicyLoss.Config):
        """Clip range of the log-ratio."""

        clip_low: float = Field(default=0.4, ge=0)
        """For A < 0, the log-ratio is at least -clip_low."""
        clip_high: float = Field(default=0.4, ge=0)
        """For A > 0, the log-ratio is at most clip_high."""
        aggregation: terms.Aggregation = terms.Aggregation.SEQ_MEAN_TOKEN_MEAN
        """Aggregation of the losses of single actions."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T], and `clip_fraction`."""
        config, log_ratio_BT, advantages_BT = (
            self.config,
            actions.log_ratio_BT,
            actions.advantages_BT,
        )
        above_BT = (advantages_BT > 0) & (log_ratio_BT > config.clip_high)
        below_BT = (advantages_BT < 0) & (log_ratio_BT < -config.clip_low)
        clipped_BT = log_ratio_BT.masked_fill(above_BT, config.clip_high).masked_fill(
            below_BT, -config.clip_low
        )
        mean_B1 = actions.row_mean(clipped_BT)
        return -advantages_BT * terms.ratio(mean_B1, mean_B1.new_zeros(())), {
            "clip_fraction": above_BT | below_BT
        }
