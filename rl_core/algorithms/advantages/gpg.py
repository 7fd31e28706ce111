"""GPG (arXiv 2504.02546): (B / number of rows with a reward other than 0) (R - mu_g).

The factor keeps the scale of the gradient when many groups are entirely wrong and add nothing to
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("gpg")
class GpgAdvantage(RowEstimator):
    """GPG: centred rewards, scaled up by the share of rows without reward."""

    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return the advantages, [B]."""
        num_rewarded = max(int((groups.rewards_B != 0).sum()), 1)
        return groups.centred() * (len(groups.rewards_B) / num_rewarded)
