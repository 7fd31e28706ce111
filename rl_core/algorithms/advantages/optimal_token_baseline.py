"""The optimal baseline of each action (arXiv 2602.07078): B_t = sum_i G_it W_it / sum_i W_it over
the group's rows that act at their t-th action, A_it = G_it - B_t.

G is the return from there on, W_it the sum over the row's actions up to t of 1 - 2 pi + sum_v
pi_v^2, the squared length of the log-probability's gradient with respect to the logits. Actions are
counted without gaps.

Where the longest reply of a group has no sibling left, it would be its own baseline, and A = 0
whatever its reward. There B_t = 0, so that the tail learns from its return. A group of one acting
row has no baseline, and advantage 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rl_core.algorithms.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    advantage_estimators,
)
from rl_core.algorithms.advantages.groups import Groups

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("optimal_token_baseline")
class OptimalTokenBaselineAdvantage(AdvantageEstimator):
    """Returns minus the baseline of least variance of each action."""

    needs_sum_squared_probs: ClassVar[bool] = True
    needs_siblings: ClassVar[bool] = True

    def per_action(self, inputs: AdvantageInputs, groups: Groups) -> Tensor:
        """Return [B, T]; the return itself where all siblings have ended, 0 for a row that never
        had one."""
        who = "the advantage optimal_token_baseline"
        skipped_BT = inputs.mask_BT == 0
        probs_BT = inputs.required("log_probs_BT", who).double().exp()
        squares_BT = inputs.required("sum_squared_probs_BT", who).double()
        energy_BT = (1 - 2 * probs_BT + squares_BT).masked_fill(skipped_BT, 0.0).cumsum(1)
        returns_BT = inputs.action_rewards().flip(1).cumsum(1).flip(1)
        # Cells are (group, number of the action within its row); the last column takes what is not
        # an action.
        place_BT = (~skipped_BT).cumsum(1).sub(1).masked_fill(skipped_BT, inputs.mask_BT.shape[1])
        first_B1 = groups.index_B[:, None] * (inputs.mask_BT.shape[1] + 1)
        cells_BT = first_B1 + place_BT
        totals_C = energy_BT.new_zeros(len(groups.counts_G) * (inputs.mask_BT.shape[1] + 1), 3)
        kept_BT3 = _stack(returns_BT * energy_BT, energy_BT, ~skipped_BT)
        totals_C.index_add_(0, cells_BT.flatten(), kept_BT3.flatten(0, 1))
        weighted_BT, weight_BT, count_BT = totals_C[cells_BT].unbind(-1)
        compared_BT = (weight_BT > 0) & (count_BT > 1)
        tail_BT = (count_BT == 1) & (totals_C[first_B1][..., 2] > 1)
        baseline_BT = (weighted_BT / weight_BT.where(compared_BT, 1.0)).masked_fill(tail_BT, 0.0)
        return (returns_BT - baseline_BT).masked_fill(skipped_BT | ~(compared_BT | tail_BT), 0.0)


def _stack(*tensors_BT: Tensor) -> Tensor:
    import torch

    return torch.stack([tensor.double() for tensor in tensors_BT], dim=-1)
