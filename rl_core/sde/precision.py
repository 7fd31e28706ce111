"""Number formats of the maths in losses and samplers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32; return float32 and float64 unchanged."""
    import torch

    return values.to(torch.promote_types(values.dtype, torch.float32))
