"""RLOO (arXiv 2402.14740 sec. 3.2): the reward minus the mean of the group's other rows, n/(n-1) (R
- mu_g).

A group of one has advantage 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("rloo")
class RlooAdvantage(RowEstimator):
    """RLOO: rewards minus the mean of the group's other rows."""

    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return [B]: R minus the mean of the others."""
        counts_B = groups.counts_G[groups.index_B]
        return groups.centred() * counts_B / (counts_B - 1).clamp(min=1)
