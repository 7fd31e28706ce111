"""Best of n: only a group's best replies are learnt, by their likelihood (RAFT, arXiv 2304.06767;
rejection sampling, arXiv 2308.01825)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("best_of_n")
class BestOfNAdvantage(RowEstimator):
    """B / K for the K kept rows of the batch of B, 0 for all others, so that the mean over rows is
    one over the kept rows."""

    class Config(RowEstimator.Config):
        """Number of replies that are kept, and the reward that they need."""

        keep: int = Field(default=1, ge=1)
        """Largest number of replies of a group that are kept, the best ones; of equal ones the
        first."""
        above: float = 0.0
        """Only a reply whose reward is greater than this is kept."""

    config: Config
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return [B]: B / K for kept rows, else 0; all 0 where no row is kept."""
        rewards_B = groups.rewards_B
        best_first = sorted(range(len(rewards_B)), key=lambda row: -float(rewards_B[row]))
        kept_B = rewards_B.new_zeros(len(rewards_B))
        num_kept: dict[int, int] = {}
        for row in best_first:
            group = int(groups.index_B[row])
            if float(rewards_B[row]) > self.config.above and num_kept.get(group, 0) < (
                self.config.keep
            ):
                num_kept[group] = num_kept.get(group, 0) + 1
                kept_B[row] = 1.0
        return kept_B * (len(kept_B) / max(float(kept_B.sum()), 1.0))
