"""OPO (arXiv 2505.23585 eq. 8): the baseline of least gradient variance if a row's gradient grows
with its length, which is the mean of the group's rewards, weighted by length."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("opo")
class OpoAdvantage(RowEstimator):
    """OPO: rewards minus the group's length-weighted mean."""

    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return [B]: R - sum(length R) / sum(length) over the group; 0 in a group of equal
        rewards."""
        lengths_B = inputs.lengths_B.double()
        baselines_G = groups.total(lengths_B * groups.rewards_B) / groups.total(lengths_B).clamp(
            min=1.0
        )
        return (groups.rewards_B - baselines_G[groups.index_B]).masked_fill(groups.flat_B, 0.0)
