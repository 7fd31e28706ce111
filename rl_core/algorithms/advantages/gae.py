"""Generalised advantage estimation (arXiv 1506.02438 eq. 16), for algorithms with a critic.

delta_t = r_t + gamma V_(t+1) - V_t and A_t = delta_t + gamma lambda A_(t+1) over the actions of a
row; tokens that are not the model's (mask 0) are skipped: both V and A carry through them. After
the last action V is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    advantage_estimators,
)
from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.advantages.scaling import ScaledConfig, whiten
from rl_core.algorithms.advantages.scan import Kept, discounted_sums

if TYPE_CHECKING:
    from torch import Tensor

PART_ELEMENTS = 270_000
"""Number of actions computed at a time, in whole rows, so that intermediate values stay in the
CPU's cache."""


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return advantages and returns (A + V), [B, T] each, 0 where the mask is 0; inputs there have
    no influence."""
    import torch

    kept_BT = mask_BT if mask_BT.dtype == torch.bool else mask_BT != 0
    dtype = torch.promote_types(rewards_BT.dtype, values_BT.dtype)
    advantages_BT, returns_BT = rewards_BT.new_empty((2, *rewards_BT.shape), dtype=dtype)
    tensors = (rewards_BT.to(dtype), values_BT.to(dtype), kept_BT, advantages_BT, returns_BT)
    num_rows = max(1, PART_ELEMENTS // max(1, kept_BT.shape[1]))
    # Fresh memory costs more than the sums: the parts take turns in one spare piece.
    spare_2BT = advantages_BT.new_empty((2, *advantages_BT[:num_rows].shape))
    for rows in zip(*(tensor.split(num_rows) for tensor in tensors), strict=True):
        _gae_rows((*rows, spare_2BT[:, : len(rows[0])]), gamma=gamma, lam=lam)
    return advantages_BT, returns_BT


def _gae_rows(tensors: tuple[Tensor, ...], *, gamma: float, lam: float) -> None:
    """Compute `gae` of a few rows.

    Args: tensors: rewards, values, mask; advantages and returns to fill; two temporary ones.
    """
    import torch

    rewards_BT, values_BT, kept_BT, advantages_BT, returns_BT, spare_2BT = tensors
    kept = Kept(kept_BT, rewards_BT.dtype)
    values_BT, rewards_BT = (
        kept.zeroed(values_BT, spare_2BT[0]),
        kept.zeroed(rewards_BT, spare_2BT[1]),
    )
    front_values_BT = kept.to_front(values_BT)
    deltas_BT = kept.to_front(rewards_BT).sub_(front_values_BT)
    deltas_BT[:, :-1].add_(front_values_BT[:, 1:], alpha=gamma)
    kept.from_front(discounted_sums(deltas_BT, gamma * lam, out=advantages_BT))
    torch.add(advantages_BT, values_BT, out=returns_BT)


@advantage_estimators.register("gae")
class GaeAdvantage(AdvantageEstimator):
    """Generalised advantage estimation on a critic's values, whitened."""

    class Config(ScaledConfig):
        """Discounts and whitening of the estimator."""

        gamma: float = Field(default=1.0, ge=0, le=1)
        """Discount of later rewards."""
        lam: float = Field(default=0.95, ge=0, le=1)
        """GAE lambda: 0 uses the critic's next value alone, 1 the sampled rewards alone."""
        whiten: bool = True
        """Scale the advantages to mean 0 and variance 1 over all actions of the batch."""
        eps: float = Field(default=1e-8, ge=0)
        """Small constant in the denominator."""
        eps_in_root: bool = True
        """Divide by sqrt(variance + eps) instead of sqrt(variance) + eps."""

    config: Config
    needs_critic: ClassVar[bool] = True

    def per_action(self, inputs: AdvantageInputs, groups: Groups) -> Tensor:
        """Return the advantages, [B, T]."""
        config = self.config
        advantages_BT, _ = self.estimate(inputs)
        if not config.whiten:
            return advantages_BT
        return whiten(
            advantages_BT,
            inputs.mask_BT,
            unbiased=config.unbiased,
            eps=config.eps,
            eps_in_root=config.eps_in_root,
        )

    def returns(self, inputs: AdvantageInputs) -> Tensor:
        """Return A + V before whitening, [B, T], in the dtype of the rewards."""
        return self.estimate(inputs)[1].to(inputs.rewards_B.dtype)

    def estimate(self, inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
        """Return the advantages before whitening and the critic's targets, [B, T] each, in
        float64."""
        values_BT = inputs.required("values_BT", "the advantage gae").detach().double()
        return gae(
            inputs.action_rewards(),
            values_BT,
            inputs.mask_BT,
            gamma=self.config.gamma,
            lam=self.config.lam,
        )
