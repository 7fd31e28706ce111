"""Generalised advantage estimation (arXiv 1506.02438 eq. 16), for algorithms with a critic.

delta_t = r_t + gamma V_(t+1) - V_t and A_t = delta_t + gamma lambda A_(t+1) over the actions of a row; places that are
not the model's (mask 0) are skipped: both V and A carry through them. After the last action V is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.advantages.base import AdvantageEstimator, AdvantageInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.advantages.scaling import ScaledConfig, whiten
from rl_core.algorithms.advantages.scan import discounted_sums, front_of, moved

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 256
"""Rows worked on at once: what they need between steps stays in the processor's cache."""


def gae(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Advantages and returns (A + V), [B, T] each, 0 where the mask is; whatever stands there has no influence."""
    import torch

    kept_BT = mask_BT != 0
    front_BT = front_of(kept_BT)
    if front_BT is not None:
        rewards_BT, values_BT = (moved(tensor, kept_BT, front_BT) for tensor in (rewards_BT, values_BT))
    advantages_BT, returns_BT = torch.empty_like(rewards_BT), torch.empty_like(rewards_BT)
    inputs = (rewards_BT, values_BT, kept_BT if front_BT is None else front_BT, advantages_BT, returns_BT)
    for part in zip(*(tensor.split(ROWS) for tensor in inputs), strict=True):
        _gae_front(*part, gamma=gamma, lam=lam)
    if front_BT is None:
        return advantages_BT, returns_BT
    return moved(advantages_BT, front_BT, kept_BT), moved(returns_BT, front_BT, kept_BT)


def _gae_front(
    rewards_BT: Tensor,
    values_BT: Tensor,
    kept_BT: Tensor,
    advantages_BT: Tensor,
    returns_BT: Tensor,
    *,
    gamma: float,
    lam: float,
) -> None:
    """`gae` where the kept places of every row come first, into the last two tensors."""
    skipped_BT = ~kept_BT
    values_BT = values_BT.masked_fill(skipped_BT, 0.0)
    deltas_BT = rewards_BT - values_BT
    deltas_BT[:, :-1].add_(values_BT[:, 1:], alpha=gamma)
    deltas_BT.masked_fill_(skipped_BT, 0.0)
    advantages_BT.copy_(discounted_sums(deltas_BT, gamma * lam))
    returns_BT.copy_(values_BT.add_(advantages_BT))


@advantage_estimators.register("gae")
class GaeAdvantage(AdvantageEstimator):
    """Generalised advantage estimation on a critic's values, whitened."""

    class Config(ScaledConfig):
        """Discounts and whitening."""

        gamma: float = Field(default=1.0, ge=0, le=1)
        """The discount of later rewards."""
        lam: float = Field(default=0.95, ge=0, le=1)
        """Weight of later values: 0 trusts the critic, 1 the rewards."""
        whiten: bool = True
        """Bring the advantages to mean 0 and variance 1 over all actions of the batch."""
        eps: float = Field(default=1e-8, ge=0)
        """Keeps the division finite."""
        eps_in_root: bool = True
        """sqrt(variance + eps) rather than sqrt(variance) + eps."""

    config: Config
    needs_critic: ClassVar[bool] = True

    def per_action(self, inputs: AdvantageInputs, groups: Groups) -> Tensor:
        """[B, T]."""
        config = self.config
        advantages_BT, _ = self.estimate(inputs)
        if not config.whiten:
            return advantages_BT
        return whiten(
            advantages_BT, inputs.mask_BT, unbiased=config.unbiased, eps=config.eps, eps_in_root=config.eps_in_root
        )

    def returns(self, inputs: AdvantageInputs) -> Tensor:
        """A + V before whitening, [B, T], in the dtype of the rewards."""
        return self.estimate(inputs)[1].to(inputs.rewards_B.dtype)

    def estimate(self, inputs: AdvantageInputs) -> tuple[Tensor, Tensor]:
        """Advantages before whitening and the returns the critic is trained on, [B, T] each, in float64."""
        values_BT = inputs.required("values_BT", "the advantage gae").detach().double()
        return gae(inputs.action_rewards(), values_BT, inputs.mask_BT, gamma=self.config.gamma, lam=self.config.lam)
