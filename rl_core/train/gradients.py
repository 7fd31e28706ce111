"""Sums of gradients, their global norm, and clipping to it, over parameters with different layouts.

torch's own norm stacks the norms of all parameters, which fails with both sharded and plain ones,
or ones on different meshes. Here each kind gives one norm, and the squares are added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

PIECE = 2**18
"""Number of elements that a CPU's cache holds in two formats."""
Layout = tuple[DeviceMesh, tuple[Placement, ...]]
"""Sharding of a parameter over ranks."""


def add_gradient(total: Tensor, gradient: Tensor) -> None:
    """Add to a sum in place, in the sum's format.

    On a CPU torch would first copy the whole gradient to that format; here one piece is copied at a
    time.
    """
    if not total.is_cpu or gradient.dtype == total.dtype or gradient.numel() <= PIECE:
        total.add_(gradient)
        return
    num_rows = max(1, PIECE * len(gradient) // gradient.numel())
    for part, own in zip(total.split(num_rows), gradient.split(num_rows), strict=True):
        part.add_(own)


def clip_gradients(
    parameters: Iterable[nn.Parameter], max_norm: float, device: torch.device
) -> float:
    """Scale the gradients in place to a global 2-norm of at most `max_norm`. Returns: the norm
    before.

    Collective. With a non-finite norm the gradients stay unchanged, so that the caller can skip the
    step. Args: device: device of collectives; gradients may be on the CPU.
    """
    groups: dict[Layout | None, list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            groups.setdefault(_layout(parameter.grad), []).append(parameter.grad)
    norms = [_norm(gradients, device) for gradients in groups.values()]
    total = norms[0] if len(norms) == 1 else math.sqrt(sum(norm**2 for norm in norms))
    if math.isfinite(total):
        scale = min(1.0, max_norm / (total + 1e-6))
        for gradients in groups.values():
            for gradient in gradients:
                gradient.mul_(scale)
    return total


def _layout(gradient: Tensor) -> Layout | None:
    if isinstance(gradient, DTensor):
        return (gradient.device_mesh, gradient.placements)
    return None


def _norm(gradients: list[Tensor], device: torch.device) -> float:
    norm = nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        local = norm.to_local().to(device)
        return float(DTensor.from_local(local, norm.device_mesh, norm.placements).full_tensor())
    return float(norm)
