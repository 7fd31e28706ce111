"""Discounted sums over the actions of a row, vectorised.

y_t = x_t + decay * y_(t+1) is cut into blocks: within a block it is a product with a triangular
matrix of powers, and the blocks' first sums are carried over from block to block by the same scan,
with the decay of a whole block. Powers are never inverted, so nothing underflows.

Axes: B rows, T actions, N blocks, K actions of a block.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BLOCK = 16


def discounted_sums(values_BT: Tensor, decay: float, out: Tensor | None = None) -> Tensor:
    """Return y_t = x_t + decay y_(t+1), [B, T], in the dtype of the values.

    Args: out: contiguous, of the values' shape.
    """
    import torch

    num_rows, length = values_BT.shape
    out = torch.empty_like(values_BT) if out is None else out
    if length <= BLOCK:
        return torch.mm(
            values_BT, _powers(decay, length, values_BT.dtype, values_BT.device)[1], out=out
        )
    if rest := -length % BLOCK:
        padded_BT = torch.nn.functional.pad(values_BT, (0, rest))
        return out.copy_(discounted_sums(padded_BT, decay)[:, :length])
    powers_K, within_KK = _powers(decay, BLOCK, values_BT.dtype, values_BT.device)
    torch.mm(values_BT.reshape(-1, BLOCK), within_KK, out=out.view(-1, BLOCK))
    sums_BNK = out.view(num_rows, -1, BLOCK)
    heads_BN = discounted_sums(sums_BNK[:, :, 0].contiguous(), decay**BLOCK)
    sums_BNK[:, :-1].addcmul_(heads_BN[:, 1:, None], powers_K)
    return out


@lru_cache(maxsize=64)
def _powers(
    decay: float, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return decay^(K - k), [K], and decay^(s - t) for s >= t, else 0, [K, K] by s and t."""
    import torch

    steps_K = torch.arange(length, dtype=torch.float64)
    base = torch.tensor(decay, dtype=torch.float64)
    distance_KK = steps_K[:, None] - steps_K[None, :]
    within_KK = torch.where(distance_KK >= 0, base ** distance_KK.clamp(min=0), 0.0)
    return (base ** (length - steps_K)).to(device, dtype), within_KK.to(device, dtype)


class Kept:
    """Selection of the elements of a row that count: zeroes the others, and moves these to the
    row's front, in order, and back.

    Args: kept_BT: mask of the elements, bool. dtype: floating-point dtype of the values.
    """

    def __init__(self, kept_BT: Tensor, dtype: torch.dtype) -> None:
        import torch

        self._whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        self._bits_BT = kept_BT.view(torch.int8).neg().to(self._whole)
        self._places = _front_places(kept_BT) if _has_gaps(kept_BT) else None

    def zeroed(self, values_BT: Tensor, out: Tensor) -> Tensor:
        """Write the selected values to `out`, and 0 elsewhere, whatever the input is there.
        Returns: `out`.

        This masks bits, which is several times faster than an element-wise `where`.
        """
        import torch

        torch.bitwise_and(values_BT.view(self._whole), self._bits_BT, out=out.view(self._whole))
        return out

    def to_front(self, values_BT: Tensor) -> Tensor:
        """Move the selected values to the front, in order, followed by 0.

        Args: values_BT: values that are 0 elsewhere.
        """
        if self._places is None:
            return values_BT
        front = values_BT.new_zeros(values_BT.numel() + 1)
        return front.scatter_(0, self._places, values_BT.reshape(-1))[:-1].view(values_BT.shape)

    def from_front(self, front_BT: Tensor) -> None:
        """Move values from the front back to their places, in place, with 0 elsewhere.

        Args: front_BT: values that are 0 behind the front.
        """
        import torch

        if self._places is not None:
            front = torch.nn.functional.pad(front_BT.reshape(-1), (0, 1))
            torch.index_select(front, 0, self._places, out=front_BT.view(-1))


def _has_gaps(kept_BT: Tensor) -> bool:
    """Return True if a selected element follows one that is not selected in any row."""
    import torch

    signed_BT = kept_BT.view(torch.int8)
    steps_BT = signed_BT[:, 1:] - signed_BT[:, :-1]
    return steps_BT.numel() > 0 and int(steps_BT.amax()) > 0


def _front_places(kept_BT: Tensor) -> Tensor:
    """Return the target index of each element over all rows; behind everything if it is not
    selected, [B * T]."""
    import torch

    num_rows, length = kept_BT.shape
    behind = num_rows * length
    starts_B1 = torch.arange(0, behind, length, device=kept_BT.device)[:, None]
    counts_BT = kept_BT.cumsum(1)
    counts_BT.add_(starts_B1 - 1 - behind).bitwise_and_(kept_BT.long().neg_()).add_(behind)
    return counts_BT.view(-1)
