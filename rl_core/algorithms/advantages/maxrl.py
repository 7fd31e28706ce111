"""MaxRL (arXiv 2602.02710): (R - mu_g) / (mu_g + eps).

Dividing by the pass rate p weighs a prompt by 1/p, as the gradient of log p does: it maximises the
likelihood of a right reply, approximated to the order of the group's size. For rewards of 0 and 1;
the advantage is 0 in a group whose mean is not positive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("maxrl")
class MaxrlAdvantage(RowEstimator):
    """MaxRL: centred rewards divided by the group's mean."""

    class Config(RowEstimator.Config):
        """Settings of the division."""

        eps: float = Field(default=1e-6, ge=0)
        """Small constant added to the mean."""

    config: Config
    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return the advantages, [B]."""
        means_B = groups.means_G[groups.index_B]
        usable_B = means_B > 0
        divisor_B = (means_B + self.config.eps).masked_fill(~usable_B, 1.0)
        return (groups.centred() / divisor_B).masked_fill(~usable_B, 0.0)
