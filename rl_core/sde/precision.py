"""In which format the maths of losses and samplers is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    import torch

    return values.to(torch.promote_types(values.dtype, torch.float32))
