"""Base class of advantage estimators, and their inputs. Axes: B rows, T actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pydantic import Field

from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.redefined import redefines
from rl_core.runtime.registry import PluginConfig, Registry

if TYPE_CHECKING:
    from torch import Tensor


class Inputs:
    """Base of the inputs of estimators, by whole rows or by action."""

    def required(self, name: str, why: str) -> Any:
        """Return the input of that name. Raises: ValueError when it is missing, naming who needs
        it."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} is required by {why}")
        return value


@dataclass(frozen=True)
class RowNumbers(Inputs):
    """Inputs of a WHOLE batch that are one number a row, under the names of `AdvantageInputs`."""

    rewards_B: Tensor
    group_ids_B: Tensor
    lengths_B: Tensor
    """Number of actions of each row."""
    greedy_rewards_B: Tensor | None = None
    rewards_by_key: Mapping[str, Tensor] | None = None

    def row_rewards(self) -> Tensor:
        """Return [B]: the rewards, from which nothing is subtracted."""
        return self.rewards_B


@dataclass(frozen=True)
class AdvantageInputs(Inputs):
    """Inputs of a WHOLE batch (groups must not be split). Raises: ValueError on shapes that do not
    match."""

    rewards_B: Tensor
    group_ids_B: Tensor
    """Group numbers, equal within a group, in any order."""
    mask_BT: Tensor
    """Mask, 1 where the model acted; values elsewhere have no influence."""
    penalties_BT: Tensor | None = None
    """Penalties subtracted from the reward at each action (the KL, if a recipe puts it into the
    reward)."""
    rewards_BT: Tensor | None = None
    """Parts of rewards_B at the actions that earned them, which sum to rewards_B over the mask;
    unset means the last action. Estimators with one advantage per row only use the sum."""
    values_BT: Tensor | None = None
    """The critic's value before each action."""
    greedy_rewards_B: Tensor | None = None
    """Reward of the greedy rollout of the row's prompt."""
    rewards_by_key: Mapping[str, Tensor] | None = None
    """Parts of the reward by name, [B] each."""
    log_probs_BT: Tensor | None = None
    """Log-probabilities of the policy that sampled."""
    sum_squared_probs_BT: Tensor | None = None
    """Sum over the vocabulary of the squared probabilities, before each action."""

    def __post_init__(self) -> None:
        num_rows = self.rewards_B.shape[0]
        if self.mask_BT.ndim != 2 or self.mask_BT.shape[0] != num_rows:
            raise ValueError(
                f"mask must be [B, T] with B = {num_rows}, got {tuple(self.mask_BT.shape)}"
            )
        for name in (
            "penalties_BT",
            "rewards_BT",
            "values_BT",
            "log_probs_BT",
            "sum_squared_probs_BT",
        ):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != self.mask_BT.shape:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, mask_BT {tuple(self.mask_BT.shape)}"
                )

    @property
    def lengths_B(self) -> Tensor:
        """Number of actions of each row."""
        return (self.mask_BT != 0).sum(1)

    def row_rewards(self) -> Tensor:
        """Return [B]: the reward minus the penalties of all actions."""
        if self.penalties_BT is None:
            return self.rewards_B
        return self.rewards_B - self.penalties_BT.masked_fill(self.mask_BT == 0, 0.0).sum(1)

    def action_rewards(self) -> Tensor:
        """Return [B, T]: the reward at the actions that earned it, minus each action's penalty; 0
        where the mask is 0."""
        import torch

        kept_BT = self.mask_BT != 0
        if self.rewards_BT is not None:
            return self._less_penalties(
                self.rewards_BT.detach().double().masked_fill(~kept_BT, 0.0), kept_BT
            )
        places_T = torch.arange(kept_BT.shape[1], device=kept_BT.device)
        last_B1 = torch.where(kept_BT, places_T, -1).amax(dim=1, keepdim=True)
        rewards_BT = torch.where(
            places_T == last_B1, self.rewards_B.detach().double()[:, None], 0.0
        )
        return self._less_penalties(rewards_BT, kept_BT)

    def _less_penalties(self, rewards_BT: Tensor, kept_BT: Tensor) -> Tensor:
        if self.penalties_BT is None:
            return rewards_BT
        return rewards_BT - self.penalties_BT.detach().double().masked_fill(~kept_BT, 0.0)


RowInputs: TypeAlias = RowNumbers | AdvantageInputs
"""Inputs of an estimator that reads numbers of rows alone."""


def over_actions(mask_BT: Tensor, advantages_B1: Tensor) -> Tensor:
    """Return advantages [B, 1] or [B, T] at the actions, [B, T]; 0 where the mask is 0."""
    return advantages_B1.expand(mask_BT.shape).masked_fill(mask_BT == 0, 0.0)


class AdvantageEstimator(ABC):
    """A named way to compute advantages from rewards, selected by a recipe's `advantage` block."""

    class Config(PluginConfig):
        """Settings of every estimator."""

        clamp: float | None = Field(default=None, gt=0)
        """Absolute value to which advantages are clipped; unset turns it off."""

    needs_critic: ClassVar[bool] = False
    """True if `values_BT` is required."""
    needs_siblings: ClassVar[bool] = False
    """True if a row without siblings has advantage 0 and therefore no learning signal."""
    needs_greedy_baseline: ClassVar[bool] = False
    """True if `greedy_rewards_B` is required."""
    needs_sum_squared_probs: ClassVar[bool] = False
    """True if `sum_squared_probs_BT` and `log_probs_BT` are required."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, inputs: AdvantageInputs) -> tuple[Tensor, dict[str, Metric]]:
        """Return the advantage of each row at each of its actions.

        Returns: [B, T], 0 where the mask is 0, at least float32, and metrics.
        Raises: RewardError on a non-finite reward, ValueError on shapes that do not match or a
        missing input.
        """
        groups = Groups.of(inputs.row_rewards(), inputs.group_ids_B)
        # Rounded while a row is one number, so that the batch is in memory once.
        advantages_BT = self._rounded(self.per_action(inputs, groups), inputs.rewards_B)
        return over_actions(inputs.mask_BT, advantages_BT), groups.metrics()

    def _rounded(self, advantages: Tensor, rewards_B: Tensor) -> Tensor:
        """Return advantages of any shape, clipped, in the format of the rewards or float32."""
        from rl_core.sde.precision import at_least_float32

        if self.config.clamp is not None:
            advantages = advantages.clamp(-self.config.clamp, self.config.clamp)
        return advantages.to(at_least_float32(rewards_B[:0]).dtype)

    @abstractmethod
    def per_action(self, inputs: AdvantageInputs, groups: Groups) -> Tensor:
        """Return the advantage of each action, [B, T], or [B, 1] where a row's are equal; values
        where the mask is 0 are ignored."""

    def of_rows(self, rows: RowNumbers) -> tuple[Tensor, dict[str, Metric]] | None:
        """Return the one advantage that a call gives at all actions of a row, [B], and the same
        metrics; None for an estimator that needs the actions. Raises: as a call."""
        return None

    def returns(self, inputs: AdvantageInputs) -> Tensor:
        """Return the targets of the critic, [B, T]. Raises: ValueError when there is no critic."""
        raise ValueError(
            f"{type(self).__name__} has no critic, so there are no returns to train one on"
        )


class RowEstimator(AdvantageEstimator):
    """An estimator that gives all actions of a row the same advantage."""

    reads_rows_alone: ClassVar[bool] = False
    """True if `per_row` reads its inputs only as far as `RowNumbers` has them: a run then computes
    advantages without the mask. It does not count for a derived class with a `per_row` of its own,
    which says so itself."""

    def per_action(self, inputs: AdvantageInputs, groups: Groups) -> Tensor:
        """Return `per_row`, [B, 1]."""
        return self.per_row(inputs, groups)[:, None]

    @abstractmethod
    def per_row(self, inputs: Any, groups: Groups) -> Tensor:
        """Return the advantage of each row, [B], in float64. Args: inputs: `AdvantageInputs`, or
        with `reads_rows_alone` either of `RowInputs`."""

    def of_rows(self, rows: RowNumbers) -> tuple[Tensor, dict[str, Metric]] | None:
        """Return `per_row`, clipped and rounded as a call does; None unless it reads rows alone."""
        if not self.reads_rows_alone or redefines(
            type(self), "reads_rows_alone", "per_row", "per_action", "__call__"
        ):
            return None
        groups = Groups.of(rows.row_rewards(), rows.group_ids_B)
        return self._rounded(self.per_row(rows, groups), rows.rewards_B), groups.metrics()


advantage_estimators: Registry[AdvantageEstimator] = Registry(
    "advantage", "rl_core.algorithms.advantages"
)
"""Advantage estimators by the `name` of a recipe's `advantage` block."""
