"""Discounted sums over the actions of a row, vectorised.

y_t = x_t + decay * y_(t+1) is cut into blocks: within a block it is a product with a triangular matrix of powers, and
only the blocks' first sums are carried over from block to block. Powers are never inverted, so nothing underflows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 32


def discounted_sums(values_BT: Tensor, decay: float) -> Tensor:
    """y_t = x_t + decay y_(t+1), [B, T], in the dtype of the values."""
    import torch

    num_rows, length = values_BT.shape
    num_blocks = -(-length // BLOCK)
    if num_blocks * BLOCK != length:
        values_BT = torch.nn.functional.pad(values_BT, (0, num_blocks * BLOCK - length))
    powers_K, within_KK = _powers(decay, values_BT)
    sums_BNK = (values_BT.reshape(-1, BLOCK) @ within_KK).view(num_rows, num_blocks, BLOCK)
    heads_NB = sums_BNK[:, :, 0].t().contiguous()
    for block in range(num_blocks - 2, -1, -1):
        heads_NB[block] += decay**BLOCK * heads_NB[block + 1]
    sums_BNK[:, :-1].addcmul_(heads_NB[1:].t()[:, :, None], powers_K)
    return sums_BNK.view(num_rows, -1)[:, :length]


def _powers(decay: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """decay^(K - k), [K], and decay^(s - t) for s >= t, else 0, [K, K] by s and t."""
    import torch

    steps_K = torch.arange(BLOCK, dtype=torch.float64)
    base = torch.tensor(decay, dtype=torch.float64)
    distance_KK = steps_K[:, None] - steps_K[None, :]
    within_KK = torch.where(distance_KK >= 0, base ** distance_KK.clamp(min=0), 0.0)
    return (base ** (BLOCK - steps_K)).to(like), within_KK.to(like)


def front_of(kept_BT: Tensor) -> Tensor | None:
    """The first places of each row, as many as it has kept ones, [B, T] bool; None when they are those already."""
    import torch

    if not bool((kept_BT[:, 1:] > kept_BT[:, :-1]).any()):
        return None
    return torch.arange(kept_BT.shape[1], device=kept_BT.device) < kept_BT.sum(1, keepdim=True)


def moved(values_BT: Tensor, from_BT: Tensor, to_BT: Tensor) -> Tensor:
    """The values at `from_BT`, in order, at the places of `to_BT`, and 0 elsewhere; both have as many in every row."""
    return values_BT.new_zeros(values_BT.shape).masked_scatter_(to_BT, values_BT[from_BT])
