"""The backward pass through the gate of a gated MLP, which the plain and the adapted one share.

Axes: N rows, M features between.
"""

from __future__ import annotations

import torch
from torch import Tensor


def backward_of_gate(
    grad_NM: Tensor, gated_NM: Tensor, raised_NM: Tensor, opened_NM: Tensor, free_NM: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of gate(x) and up(x), [N, M], from that of silu(gate(x)) * up(x).

    Args: opened_NM: silu(gate(x)); it, the gradient and `free_NM` are written over.
    """
    grad_raised_NM = torch.mul(opened_NM, grad_NM, out=free_NM)
    slope_NM = torch.mul(grad_NM, raised_NM, out=opened_NM)
    return torch.ops.aten.silu_backward.grad_input(
        slope_NM, gated_NM, grad_input=grad_NM
    ), grad_raised_NM
