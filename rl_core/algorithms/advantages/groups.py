"""Groups: the rows with the same prompt (equal `uid`).

Axes: B rows, G groups. Computed in float64, so that a group's numbers depend on the order of its
rows only in the last bits. A group whose rewards are all equal, including a group of one, carries
no learning signal: its rows are centred to exactly 0 and it is counted in `zero_std_groups`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.errors import RewardError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """The rewards of a batch by group, in float64."""

    rewards_B: Tensor
    index_B: Tensor
    """Group of each row, 0..G-1."""
    counts_G: Tensor
    means_G: Tensor
    flat_G: Tensor
    """True where all rewards of the group are equal."""

    @classmethod
    def of(cls, rewards_B: Tensor, group_ids_B: Tensor) -> Groups:
        """Group the rows of a batch.

        Raises: ValueError on shapes that do not match, RewardError on a non-finite reward, naming
        its row.
        """
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

    @property
    def flat_B(self) -> Tensor:
        """Mask of rows whose group has equal rewards, [B]."""
        return self.flat_G[self.index_B]

    def total(self, values_B: Tensor) -> Tensor:
        """Return the sum of `values_B` over each group, [G]."""
        return values_B.new_zeros(len(self.counts_G)).index_add(0, self.index_B, values_B)

    def centred(self) -> Tensor:
        """Return R - mu_g, [B], exactly 0 in a group of equal rewards."""
        return (self.rewards_B - self.means_G[self.index_B]).masked_fill(self.flat_B, 0.0)

    def variance(self, unbiased: bool) -> Tensor:
        """Return the variance of each row's group, [B]; over n - 1 if `unbiased`."""
        squares_G = self.total(self.centred().square())
        return (squares_G / (self.counts_G - int(unbiased)).clamp(min=1))[self.index_B]

    def metrics(self) -> dict[str, Metric]:
        """Return the groups' counts and the rewards' mean."""
        num_groups, num_rows = float(len(self.counts_G)), float(len(self.rewards_B))
        return {
            "reward_mean": Metric(MetricKind.MEAN, float(self.rewards_B.sum()), num_rows),
            "num_groups": Metric(MetricKind.SUM, num_groups, num_groups),
            "zero_std_groups": Metric(MetricKind.SUM, float(self.flat_G.sum()), num_groups),
        }


def group_ids(uids: Sequence[Hashable]) -> Tensor:
    """Return [B] integers, equal where the uids are equal, numbered by first appearance."""
    import torch

    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in uids], dtype=torch.long)


def _check_finite(rewards_B: Tensor, group_ids_B: Tensor) -> None:
    bad_rows = (~rewards_B.isfinite()).nonzero().flatten().tolist()
    if bad_rows:
        named = ", ".join(
            f"row {row} (group {int(group_ids_B[row])}): {float(rewards_B[row])}"
            for row in bad_rows[:5]
        )
        raise RewardError(
            f"{len(bad_rows)} rewards are not finite: {named}; a reward must be a finite number"
        )
