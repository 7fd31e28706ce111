"""Rounding of merged weights that keeps a small change in the mean.

The weights of a model in bfloat16 stand on its steps, of 1/128 or 1/256 of themselves. A change by
less than half a step, as of most entries after some updates, is lost when the sum is rounded to the
nearest: the merged model is then nearer to the base than to what was trained. Here the share of a
step that is left over decides how many entries are rounded up, as ordered dithering does with
shades of grey: each has a threshold of its own, the fractional parts of multiples of the golden
ratio, which are spread evenly over neighbours (Weyl, 1916). The rule draws no random numbers, so
that a tensor is always rounded in the same way, on any device.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

LEFT_OVER = {torch.bfloat16: 16, torch.float16: 13}
"""Bits of a float32 that a format has no room for."""
GOLDEN = 2654435769 - 2**32
"""2**32 divided by the golden ratio, as a signed number of 32 bits."""
AT_ONCE = 2**20
"""Numbers that are rounded at once, which stay in a processor's cache."""


def dithered(weight: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Return a weight in another format, right in the mean of its entries.

    Args: weight: float32, any shape. name: decides the thresholds, so that tensors differ. Returns:
    the weight in `dtype`; rounded to the nearest if that is no format of two bytes.
    """
    bits = LEFT_OVER.get(dtype)
    if bits is None or weight.dtype is not torch.float32:
        return weight.to(dtype)
    flat_N = weight.detach().contiguous().view(-1)
    rounded_N = torch.empty_like(flat_N, dtype=dtype)
    # Products of 32 bits wrap around: what is left is the fractional part.
    spread_N = torch.arange(AT_ONCE, dtype=torch.int32, device=weight.device) * GOLDEN
    for start in range(0, len(flat_N), AT_ONCE):
        part_N = flat_N[start : start + AT_ONCE].view(torch.int32)
        offset = _wrapped(zlib.crc32(name.encode()) + start * GOLDEN)
        threshold_N = (spread_N[: len(part_N)] + offset) >> (32 - bits) & (2**bits - 1)
        raised_N = (part_N + threshold_N) & -(2**bits)
        rounded_N[start : start + AT_ONCE] = raised_N.view(torch.float32).to(dtype)
    return rounded_N.view(weight.shape)


def _wrapped(number: int) -> int:
    """Return a number as 32 bits with a sign hold it."""
    return (number + 2**31) % 2**32 - 2**31
