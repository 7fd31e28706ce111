"""Base class of policy losses, and their inputs. Axes: B rows, T actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from rl_core.algorithms import terms
from rl_core.runtime.registry import PluginConfig, Registry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Actions:
    """Actions of a micro-batch, [B, T] each, float32 or better, and 0 where the mask is 0."""

    log_probs_BT: Tensor
    """Log-probabilities of the current policy, the only input with a gradient."""
    old_log_probs_BT: Tensor
    """Log-probabilities of the policy that sampled."""
    advantages_BT: Tensor
    mask_BT: Tensor
    """Mask, True where the model acted."""
    old_kl_BT: Tensor | None = None
    """KL(current policy, policy that sampled), if the policy can compute it exactly."""

    @cached_property
    def log_ratio_BT(self) -> Tensor:
        """Log-ratio d = log_prob - old_log_prob."""
        return self.log_probs_BT - self.old_log_probs_BT

    @cached_property
    def ratio_BT(self) -> Tensor:
        """Ratio rho = exp(d), bounded; see `terms.ratio`."""
        return terms.ratio(self.log_probs_BT, self.old_log_probs_BT)

    @cached_property
    def moves_away_BT(self) -> Tensor:
        """True where a step along the advantage increases the distance to the old policy: A > 0 and
        rho > 1, or both less."""
        up_BT = (self.advantages_BT > 0) & (self.log_ratio_BT > 0)
        return up_BT | ((self.advantages_BT < 0) & (self.log_ratio_BT < 0))

    def row_mean(self, values_BT: Tensor) -> Tensor:
        """Return the mean over a row's actions, [B, 1]; 0 in a row without actions."""
        return terms.masked_mean(values_BT, self.mask_BT, dim=1)[:, None]


class PolicyLoss(ABC):
    """A named loss per action, selected by a recipe's `loss` block."""

    class Config(PluginConfig):
        """Settings of every policy loss."""

        aggregation: terms.Aggregation = terms.Aggregation.TOKEN_MEAN
        """Aggregation of the losses of single actions."""

    supports_multi_update: ClassVar[bool] = True
    """True if the loss corrects for the change of the policy since the rollout."""
    needs_old_kl: ClassVar[bool] = False
    """True if `Actions.old_kl_BT` is required."""
    splits_exactly: ClassVar[bool] = True
    """True if an action's loss is independent of the other rows of its micro-batch."""
    vanishes_without_advantage: ClassVar[bool] = False
    """True if the loss of an action with advantage 0 is always 0, so that it has no gradient."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each action, [B, T], and values to log as means over actions, [B, T]
        by name."""


policy_losses: Registry[PolicyLoss] = Registry("policy loss", "rl_core.algorithms.losses")
"""Policy losses by the `name` of a recipe's `loss` block."""
