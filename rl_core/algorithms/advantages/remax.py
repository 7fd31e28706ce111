"""ReMax (arXiv 2310.10505 eq. 9): the reward minus that of the greedy reply to the same prompt. One
reply is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("remax")
class RemaxAdvantage(RowEstimator):
    """ReMax: rewards minus the greedy rollout's."""

    needs_greedy_baseline: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return [B]: R minus the greedy reward. Raises: RewardError when a greedy reward is not
        finite."""
        greedy_B = inputs.required("greedy_rewards_B", "the advantage remax")
        return groups.rewards_B - Groups.of(greedy_B, inputs.group_ids_B).rewards_B
