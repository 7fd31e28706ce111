"""Advantages: how much better a row did than its group, the rows that answer the same prompt (equal `uid`).

Axes: B rows, T actions, G groups. R rewards, mu_g and sigma_g mean and standard deviation of the row's group.
Computed in float64, so that a group's advantages do not depend on the order of its rows beyond the last bits.
A group whose rewards are all equal, a group of one included, teaches nothing: its advantages are exactly 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.errors import RewardError
from rl_core.registry import PluginConfig, Registry

if TYPE_CHECKING:
    from torch import Tensor


class StdScope(StrEnum):
    """Over which rows the standard deviation is taken."""

    GROUP = "group"
    """The row's own group (GRPO)."""
    BATCH = "batch"
    """All rows (Flow-GRPO and other diffusion recipes)."""


@dataclass(frozen=True)
class Groups:
    """The rewards of a batch by group, in float64."""

    rewards_B: Tensor
    index_B: Tensor
    """Each row's group, 0..G-1."""
    counts_G: Tensor
    means_G: Tensor
    flat_G: Tensor
    """True where all rewards of the group are equal."""

    @classmethod
    def of(cls, rewards_B: Tensor, group_ids_B: Tensor) -> Groups:
        """Raises: ValueError on shapes that do not match, RewardError on a non-finite reward, naming its row."""
        import torch

        if rewards_B.ndim != 1 or rewards_B.shape != group_ids_B.shape:
            shapes = f"{tuple(rewards_B.shape)} and {tuple(group_ids_B.shape)}"
            raise ValueError(f"rewards and group ids must both be [B], got {shapes}")
        _check_finite(rewards_B, group_ids_B)
        values_B = rewards_B.detach().double()
        _, index_B, counts_G = torch.unique(group_ids_B, return_inverse=True, return_counts=True)
        zeros_G = values_B.new_zeros(len(counts_G))
        means_G = zeros_G.index_add(0, index_B, values_B) / counts_G
        highest_G = zeros_G.scatter_reduce(0, index_B, values_B, "amax", include_self=False)
        lowest_G = zeros_G.scatter_reduce(0, index_B, values_B, "amin", include_self=False)
        return cls(values_B, index_B, counts_G, means_G, highest_G == lowest_G)

    def centred(self) -> Tensor:
        """R - mu_g, [B], exactly 0 in a flat group."""
        return (self.rewards_B - self.means_G[self.index_B]).masked_fill(self.flat_G[self.index_B], 0.0)

    def metrics(self) -> dict[str, Metric]:
        """The groups' counts and the rewards' mean."""
        num_groups, num_rows = float(len(self.counts_G)), float(len(self.rewards_B))
        return {
            "reward_mean": Metric(MetricKind.MEAN, float(self.rewards_B.sum()), num_rows),
            "num_groups": Metric(MetricKind.SUM, num_groups, num_groups),
            "zero_std_groups": Metric(MetricKind.SUM, float(self.flat_G.sum()), num_groups),
        }


def grpo(
    rewards_B: Tensor,
    group_ids_B: Tensor,
    *,
    norm_by_std: bool = True,
    std_scope: StdScope = StdScope.GROUP,
    unbiased: bool = True,
    eps: float = 1e-6,
) -> tuple[Tensor, dict[str, Metric]]:
    """(R - mu_g) / (sigma + eps) (GRPO, arXiv 2402.03300 sec. 4.1.2; `norm_by_std=False` is Dr.GRPO, arXiv 2503.20783).

    Args: rewards_B: [B]. group_ids_B: [B] integers, equal for siblings, in any order.
        unbiased: sigma over n - 1, not n.
    Returns: [B] in the dtype of the rewards, and metrics. Raises: RewardError on a non-finite reward, naming its row.
    """
    groups = Groups.of(rewards_B, group_ids_B)
    advantages_B = groups.centred()
    if norm_by_std:
        std_B = _group_std(groups, unbiased) if std_scope is StdScope.GROUP else _batch_std(groups, unbiased)
        advantages_B = advantages_B / (std_B + eps)
    return _in_dtype(advantages_B, rewards_B), groups.metrics()


def rloo(rewards_B: Tensor, group_ids_B: Tensor) -> tuple[Tensor, dict[str, Metric]]:
    """R minus the mean of the others of the group, which is n/(n-1) (R - mu_g) (RLOO, arXiv 2402.14740 sec. 3.2).

    Args: rewards_B: [B]. group_ids_B: [B] integers, equal for siblings, in any order.
    Returns: [B] in the dtype of the rewards, and metrics. Raises: RewardError on a non-finite reward, naming its row.
    """
    groups = Groups.of(rewards_B, group_ids_B)
    counts_B = groups.counts_G[groups.index_B]
    advantages_B = groups.centred() * counts_B / (counts_B - 1).clamp(min=1)
    return _in_dtype(advantages_B, rewards_B), groups.metrics()


def group_ids(uids: Sequence[Any]) -> Tensor:
    """[B] integers, equal where the uids are equal, numbered by first appearance."""
    import torch

    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in uids], dtype=torch.long)


class AdvantageEstimator(ABC):
    """A named way to turn rewards into advantages, as a recipe's `advantage` block chooses it."""

    class Config(PluginConfig):
        """No settings."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, rewards_B: Tensor, group_ids_B: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, Metric]]:
        """The advantage of each row at each of its actions.

        Args: rewards_B: [B]. group_ids_B: [B] integers. mask_BT: [B, T].
        Returns: [B, T], 0 where the mask is, and metrics.
        Raises: RewardError on a non-finite reward, ValueError on shapes that do not match.
        """
        if mask_BT.ndim != 2 or mask_BT.shape[0] != rewards_B.shape[0]:
            raise ValueError(f"mask must be [B, T] with B = {rewards_B.shape[0]}, got {tuple(mask_BT.shape)}")
        advantages_B, metrics = self.per_row(rewards_B, group_ids_B)
        return advantages_B[:, None] * (mask_BT != 0), metrics

    @abstractmethod
    def per_row(self, rewards_B: Tensor, group_ids_B: Tensor) -> tuple[Tensor, dict[str, Metric]]:
        """The advantage of each row, [B], and metrics."""


advantage_estimators: Registry[AdvantageEstimator] = Registry("advantage", "rl_core.algorithms")
"""Advantage estimators by the `name` of a recipe's `advantage` block."""


@advantage_estimators.register("grpo")
class GrpoAdvantage(AdvantageEstimator):
    """Rewards relative to their own group, divided by a standard deviation; see `grpo`."""

    class Config(AdvantageEstimator.Config):
        """The conventions on which published versions differ."""

        norm_by_std: bool = True
        """Divide by the standard deviation; false is Dr.GRPO."""
        std_scope: StdScope = StdScope.GROUP
        """Over which rows the standard deviation is taken."""
        unbiased: bool = True
        """Standard deviation over n - 1 rather than n."""
        eps: float = Field(default=1e-6, ge=0)
        """Added to the standard deviation."""

    config: Config

    def per_row(self, rewards_B: Tensor, group_ids_B: Tensor) -> tuple[Tensor, dict[str, Metric]]:
        """[B] and metrics, as `grpo`."""
        config = self.config
        return grpo(
            rewards_B,
            group_ids_B,
            norm_by_std=config.norm_by_std,
            std_scope=config.std_scope,
            unbiased=config.unbiased,
            eps=config.eps,
        )


@advantage_estimators.register("rloo")
class RlooAdvantage(AdvantageEstimator):
    """Rewards against the mean of the group's other rows; see `rloo`."""

    def per_row(self, rewards_B: Tensor, group_ids_B: Tensor) -> tuple[Tensor, dict[str, Metric]]:
        """[B] and metrics, as `rloo`."""
        return rloo(rewards_B, group_ids_B)


def _group_std(groups: Groups, unbiased: bool) -> Tensor:
    centred_B = groups.centred()
    squares_G = centred_B.new_zeros(len(groups.counts_G)).index_add(0, groups.index_B, centred_B.square())
    freedom_G = (groups.counts_G - int(unbiased)).clamp(min=1)
    # A flat group has sigma 0 and advantage 0; dividing by 1 keeps eps = 0 from making that 0/0.
    return (squares_G / freedom_G).sqrt().masked_fill(groups.flat_G, 1.0)[groups.index_B]


def _batch_std(groups: Groups, unbiased: bool) -> Tensor:
    centred_B = groups.rewards_B - groups.rewards_B.mean()
    std = (centred_B.square().sum() / max(len(centred_B) - int(unbiased), 1)).sqrt()
    return std.expand_as(centred_B).masked_fill(groups.flat_G[groups.index_B], 1.0)


def _check_finite(rewards_B: Tensor, group_ids_B: Tensor) -> None:
    bad_rows = (~rewards_B.isfinite()).nonzero().flatten().tolist()
    if bad_rows:
        named = ", ".join(f"row {row} (group {int(group_ids_B[row])}): {float(rewards_B[row])}" for row in bad_rows[:5])
        raise RewardError(f"{len(bad_rows)} rewards are not finite: {named}; a reward must be a finite number")


def _in_dtype(advantages_B: Tensor, rewards_B: Tensor) -> Tensor:
    from rl_core.algorithms.terms import at_least_float32

    return advantages_B.to(at_least_float32(rewards_B[:0]).dtype)
