"""Training for pass@k: it is enough that one of k replies is right, so diversity is rewarded.

`grpo_passk` (arXiv 2503.19595): only the group's best row learns, by its lead over the second.
`pass_at_k` (arXiv 2508.10751 eqs. 12-16): rewards are right or wrong; the reward of a set of k rows
is 1 if one is right; each row's advantage is the mean over all sets of k rows of the group that
contain it, in closed form. With N rows of which W are wrong, p = 1 - C(W,k)/C(N,k) and sigma =
sqrt(p (1 - p)):
right rows (1 - p) / sigma, wrong rows (1 - p - C(W-1,k-1)/C(N-1,k-1)) / sigma.
"""

from __future__ import annotations

from math import comb, sqrt
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.advantages.scaling import ScaledConfig, over_std

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("grpo_passk")
class GrpoPasskAdvantage(RowEstimator):
    """Lead of each group's best row over the second; 0 for all other rows."""

    class Config(ScaledConfig):
        """Convention of the division, in which published versions differ."""

        norm_by_std: bool = False
        """Divide by the group's standard deviation."""

    config: Config
    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return [B]: r_max - r_2nd for the best row, 0 if two share the lead; 0 in a group of
        one."""
        config, rewards_B, index_B = self.config, groups.rewards_B, groups.index_B
        lowest_G = rewards_B.new_full((len(groups.counts_G),), float("-inf"))
        best_G = lowest_G.scatter_reduce(0, index_B, rewards_B, "amax")
        is_best_B = rewards_B == best_G[index_B]
        second_G = lowest_G.scatter_reduce(
            0, index_B, rewards_B.masked_fill(is_best_B, float("-inf")), "amax"
        )
        unique_B = groups.total(is_best_B.double())[index_B] == 1
        leads_B = is_best_B & unique_B & ~groups.flat_B
        advantages_B = (rewards_B - second_G[index_B]).where(leads_B, rewards_B.new_zeros(()))
        if not config.norm_by_std:
            return advantages_B
        return over_std(
            advantages_B, groups.variance(config.unbiased), config.eps, config.eps_in_root
        )


@advantage_estimators.register("pass_at_k")
class PassAtKAdvantage(RowEstimator):
    """Mean advantage of all sets of k rows that contain a row."""

    class Config(RowEstimator.Config):
        """Number of replies of a set, and the reward of a right one."""

        k: int = Field(default=4, ge=1)
        """Size of the sets; at most the size of the groups (a smaller group is one set)."""
        pass_mark: float = 1.0
        """Reward from which a reply counts as right."""

    config: Config
    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return [B]; 0 in a group that is all right or all wrong, or has fewer wrong rows than
        k."""
        right_B = groups.rewards_B >= self.config.pass_mark
        num_right_G = groups.total(right_B.double()).long().tolist()
        pairs = []
        for n, r in zip(groups.counts_G.tolist(), num_right_G, strict=True):
            pairs.append(_pair(n, n - r, self.config.k))
        table_G2 = groups.rewards_B.new_tensor(pairs)
        return table_G2[groups.index_B].gather(1, right_B.long()[:, None])[:, 0]


def _pair(num_rows: int, num_wrong: int, k: int) -> tuple[float, float]:
    """Return the advantages of a wrong and of a right row."""
    k = min(k, num_rows)
    passing = 1 - comb(num_wrong, k) / comb(num_rows, k)
    if passing in (0.0, 1.0):
        return 0.0, 0.0
    sigma = sqrt(passing * (1 - passing))
    fails_with = comb(num_wrong - 1, k - 1) / comb(num_rows - 1, k - 1)
    return (1 - passing - fails_with) / sigma, (1 - passing) / sigma
