"""Drawing of one column per row in proportion to weights.

Axes: R rows, V columns, in K blocks of W.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK_WORDS = 256
"""Number of words in the blocks that are drawn first."""


def pick(weights_RV: Tensor, random_R1: Tensor) -> Tensor:
    """Draw columns in proportion to the weights, with one random number per row.

    `multinomial` would draw one for every word of the vocabulary. First the block of columns is
    found, then the column.
    """
    short = -weights_RV.shape[1] % BLOCK_WORDS
    whole_RV = torch.nn.functional.pad(weights_RV, (0, short)) if short else weights_RV
    blocks_RKW = whole_RV.unflatten(1, (-1, BLOCK_WORDS))
    ends_RK = blocks_RKW.sum(-1).double().cumsum(-1)
    point_R1 = random_R1 * ends_RK[:, -1:]
    block_R1 = _first_beyond(ends_RK, point_R1)
    before_R1 = torch.nn.functional.pad(ends_RK, (1, 0)).gather(1, block_R1)
    block_RW = blocks_RKW[torch.arange(len(weights_RV), device=weights_RV.device), block_R1[:, 0]]
    column_R1 = _first_beyond(block_RW.double().cumsum(-1), point_R1 - before_R1)
    return (block_R1 * BLOCK_WORDS + column_R1)[:, 0]


def _first_beyond(ends_RK: Tensor, point_R1: Tensor) -> Tensor:
    """Return the first index whose end lies beyond the point, [R, 1]; never one without weight."""
    # Rounding may move the point to the very end.
    return torch.searchsorted(ends_RK, point_R1.minimum(ends_RK[:, -1:] * (1 - 1e-12)), right=True)
