"""Base of algorithms that learn from pairs of answers: adjacent rows, the chosen one first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl_core.algorithms.base import RowAlgorithm
from rl_core.sde.precision import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor


class PairAlgorithm(RowAlgorithm):
    """An algorithm over adjacent rows, the chosen answer and the rejected one, marked by the sign
    of the advantage."""

    # No old policy enters the loss, so rows may be trained on as often as one likes.
    supports_multi_update: bool = True
    rows_per_unit: int = 2

    def per_row(self, rewards_B: Tensor) -> Tensor:
        """Return +1 for chosen rows (reward above 0) and -1 for rejected ones, [B]."""
        ones_B = at_least_float32(rewards_B.detach()).new_ones(len(rewards_B))
        return ones_B.where(rewards_B > 0, -1.0)


def paired_rows(advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mask [B] of the rows with an action, two for each pair.

    Raises: ValueError when they are not adjacent pairs, the chosen one first.
    """
    kept_BT = mask_BT != 0
    acting_B, signs_B = kept_BT.any(1), advantages_BT.masked_fill(~kept_BT, 0.0).sum(1).sign()
    if signs_B[acting_B].view(-1).tolist() != [1.0, -1.0] * (int(acting_B.sum()) // 2):
        raise ValueError(
            f"rows must be adjacent pairs, the chosen one first; signs {signs_B.tolist()}"
        )
    return acting_B


def ahead(values_N2: Tensor) -> Tensor:
    """Return by how much the chosen answer of each pair leads, [N]."""
    return values_N2[:, 0] - values_N2[:, 1]
