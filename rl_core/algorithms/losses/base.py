"""What a policy loss is given and what it returns. Axes: B rows, T actions."""

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
    """The actions of a micro-batch, [B, T] each, float32 or better, and 0 where the mask is."""

    log_probs_BT: Tensor
    """Of the policy now; the only one with a gradient."""
    old_log_probs_BT: Tensor
    """Of the policy that rolled out."""
    advantages_BT: Tensor
    mask_BT: Tensor
    """True where the model acted."""
    old_kl_BT: Tensor | None = None
    """KL(policy now, policy that rolled out), where the policy can state it exactly."""

    @cached_property
    def log_ratio_BT(self) -> Tensor:
        """d = log_prob - old_log_prob."""
        return self.log_probs_BT - self.old_log_probs_BT

    @cached_property
    def ratio_BT(self) -> Tensor:
        """rho = exp(d), bounded; see `terms.ratio`."""
        return terms.ratio(self.log_probs_BT, self.old_log_probs_BT)

    @cached_property
    def moves_away_BT(self) -> Tensor:
        """True where a step along the advantage leads further from the old policy: A > 0 and rho > 1, or both less."""
        up_BT = (self.advantages_BT > 0) & (self.log_ratio_BT > 0)
        return up_BT | ((self.advantages_BT < 0) & (self.log_ratio_BT < 0))

    def row_mean(self, values_BT: Tensor) -> Tensor:
        """The mean over a row's actions, [B, 1]; 0 in a row without any."""
        return terms.masked_mean(values_BT, self.mask_BT, dim=1)[:, None]


class PolicyLoss(ABC):
    """A named loss per action, as a recipe's `loss` block chooses it."""

    class Config(PluginConfig):
        """What every policy loss can be told."""

        aggregation: terms.Aggregation = terms.Aggregation.TOKEN_MEAN
        """How the losses of single actions become one number."""

    supports_multi_update: ClassVar[bool] = True
    """Whether the loss corrects for the policy having moved since the rollout."""
    needs_old_kl: ClassVar[bool] = False
    """Whether `Actions.old_kl_BT` must be given."""
    splits_exactly: ClassVar[bool] = True
    """Whether an action's loss is independent of the other rows of its micro-batch."""
    vanishes_without_advantage: ClassVar[bool] = False
    """Whether the loss of an action of advantage 0 is 0 whatever the policy says, so that it has no gradient."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each action, [B, T], and what is to be logged as means over actions, [B, T] by name."""


policy_losses: Registry[PolicyLoss] = Registry("policy loss", "rl_core.algorithms.losses")
"""Policy losses by the `name` of a recipe's `loss` block."""
