"""REINFORCE++ (arXiv 2501.03262): no critic; advantages are normalised over the whole batch.

`reinforce_plus_plus`: the discounted return of each action, G_t = r_t + gamma G_(t+1), carried
unchanged through tokens that are not the model's, then whitened over all actions.
`reinforce_plus_plus_baseline`: the reward minus its group's mean, whitened over all actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    RowEstimator,
    RowInputs,
    advantage_estimators,
)
from rl_core.algorithms.advantages.gae import gae
from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.advantages.scaling import ScaledConfig, whiten, whiten_rows

if TYPE_CHECKING:
    from torch import Tensor


class WhitenedConfig(ScaledConfig):
    """Conventions of the whitening."""

    eps: float = Field(default=1e-8, ge=0)
    """Small constant in the denominator."""
    eps_in_root: bool = True
    """Divide by sqrt(variance + eps) instead of sqrt(variance) + eps."""


@advantage_estimators.register("reinforce_plus_plus")
class ReinforcePlusPlusAdvantage(AdvantageEstimator):
    """REINFORCE++: whitened discounted returns."""

    class Config(WhitenedConfig):
        """Discount and whitening of the estimator."""

        gamma: float = Field(default=1.0, ge=0, le=1)
        """Discount of later rewards."""

    config: Config

    def per_action(self, inputs: AdvantageInputs, groups: Groups) -> Tensor:
        """Return the advantages, [B, T]."""
        config, rewards_BT = self.config, inputs.action_rewards()
        # With lambda 1 and no values, an advantage is the discounted return.
        returns_BT, _ = gae(
            rewards_BT,
            rewards_BT.new_zeros(rewards_BT.shape),
            inputs.mask_BT,
            gamma=config.gamma,
            lam=1.0,
        )
        return whiten(
            returns_BT,
            inputs.mask_BT,
            unbiased=config.unbiased,
            eps=config.eps,
            eps_in_root=config.eps_in_root,
        )


@advantage_estimators.register("reinforce_plus_plus_baseline")
class ReinforcePlusPlusBaselineAdvantage(RowEstimator):
    """REINFORCE++ with baseline: centred rewards, whitened over the batch."""

    class Config(WhitenedConfig):
        """Conventions of the whitening."""

    config: Config
    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return the advantages, [B]."""
        config = self.config
        return whiten_rows(
            groups.centred(),
            inputs.lengths_B,
            unbiased=config.unbiased,
            eps=config.eps,
            eps_in_root=config.eps_in_root,
        )
