"""AdamW whose two running means are stored in 8 bits (arXiv 2110.02861), by torchao's format.

A mean is stored as codes of one byte, and each block of at most 256 neighbours has a scale. Blocks
here never cross a row. So codes and scales are sharded as their parameter is, a step computes the
same on any number of ranks, and a checkpoint loads on any number of them. Vectors, small matrices,
and matrices whose rows have no fitting divisor keep means in full precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from rl_core.train.weights.ema import local_part

STEP = "step"
"""Key of a parameter's update count."""
MEANS = {"exp_avg": True, "exp_avg_sq": False}
"""AdamW's running means, and whether they have a sign."""
CODES, SCALES = "_codes", "_scales"
"""Endings of the keys of a mean's bytes and of its blocks' scales."""
MIN_ELEMENTS = 4096
"""Size below which means keep full precision, as in bitsandbytes and torchao."""
BLOCKS = range(256, 31, -1)
"""Allowed sizes of a block, the preferred ones first."""
PIECE = 2**20
"""Number of elements that are updated at a time: a step needs several copies in float32."""


class AdamW8bit(AdamW):
    """AdamW with running means of 8 bits where a parameter's shape allows it. Args: as AdamW's."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        groups = self.param_groups
        plain_groups = []
        for group in groups:
            plain = []
            for parameter in group["params"]:
                block = block_of(parameter)
                if block is None:
                    plain.append(parameter)
                elif parameter.grad is not None:
                    self._update(parameter, parameter.grad, block, group)
            if plain:
                plain_groups.append({**group, "params": plain})
        self.param_groups = plain_groups
        try:
            super().step(closure)
        finally:
            self.param_groups = groups

    def _update(
        self, parameter: nn.Parameter, gradient: Tensor, block: int, group: dict[str, Any]
    ) -> None:
        state = self.state[parameter]
        if not state:
            state.update(initial_state(parameter, block))
        state[STEP] += 1
        values = local_part(parameter).view(-1, block)
        gradients = local_part(gradient).reshape(-1, block)
        codes = {name: local_part(state[name + CODES]).view(-1, block) for name in MEANS}
        scales = {name: local_part(state[name + SCALES]).view(-1) for name in MEANS}
        options = {
            "rate": torch.tensor(group["lr"], device=values.device),
            "betas": group["betas"],
            "decay": group["weight_decay"],
            "eps": group["eps"],
        }
        update, levels = _compiled(values.device.type), _levels(values.device)
        num_blocks = PIECE // block
        for start in range(0, len(values), num_blocks):
            some = slice(start, start + num_blocks)
            means = [(codes[name][some], scales[name][some]) for name in MEANS]
            update(values[some], gradients[some], state[STEP], means, levels, **options)


def block_of(parameter: Tensor) -> int | None:
    """Return the size of a parameter's blocks, or None if its means stay in full precision."""
    if parameter.ndim < 2 or parameter.numel() < MIN_ELEMENTS:
        return None
    whole, own = parameter.shape[-1], local_part(parameter).shape[-1]
    # Where columns are sharded, a rank has whole blocks, or the means stay as they are.
    return next((size for size in BLOCKS if whole % size == 0 and own % size == 0), None)


def initial_state(parameter: nn.Parameter, block: int) -> dict[str, Tensor]:
    """Return the state of a parameter without an update: means of zero, no step taken."""
    state = {STEP: torch.zeros((), device=parameter.device)}
    for name in MEANS:
        state[name + CODES] = _sharded_like(parameter, torch.uint8, 1)
        state[name + SCALES] = _sharded_like(parameter, torch.float32, block)
    return state


def _sharded_like(parameter: Tensor, dtype: torch.dtype, block: int) -> Tensor:
    """Return zeros with one element for each block of a parameter's row, sharded as it is."""
    own = local_part(parameter)
    zeros = torch.zeros((*own.shape[:-1], own.shape[-1] // block), dtype=dtype, device=own.device)
    if not isinstance(parameter, DTensor):
        return zeros
    shape = torch.Size((*parameter.shape[:-1], parameter.shape[-1] // block))
    sharded = DTensor.from_local(
        zeros,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )
    # from_local moves to the device of collectives, and offloaded weights stay on the CPU.
    return sharded.to(own.device)


@cache
def _levels(device: torch.device) -> tuple[Tensor, ...]:
    """Return the 256 values that a code of each mean stands for, as shares of its block's scale."""
    from torchao.optim.quant_utils import create_dynamic_map

    return tuple(
        torch.tensor(create_dynamic_map(signed), device=device) for signed in MEANS.values()
    )


def _update_blocks(
    values: Tensor,
    gradients: Tensor,
    step: Tensor,
    means: list[tuple[Tensor, Tensor]],
    levels: tuple[Tensor, ...],
    *,
    rate: Tensor,
    betas: tuple[float, float],
    decay: float,
    eps: float,
) -> None:
    """Update blocks [N, block] and the codes [N, block] and scales [N] of their means in place."""
    from torchao.optim.quant_utils import (
        dequant_with_qmap,
        quantize_8bit_with_qmap,
        scale_tensor,
    )

    gradients = gradients.float()
    targets = (gradients, gradients.square())
    new = []
    for (codes, scales), known, target, beta in zip(means, levels, targets, betas, strict=True):
        mean = dequant_with_qmap(codes, known, scales).lerp(target, 1 - beta)
        scaled, new_scales = scale_tensor(mean, codes.shape[1])
        codes.copy_(quantize_8bit_with_qmap(scaled, known))
        scales.copy_(new_scales)
        new.append(mean / (1 - beta**step))
    mean, square = new
    whole = values.float() * (1 - rate * decay)
    values.copy_(whole - rate * mean / (square.sqrt() + eps))


@cache
def _compiled(device: str) -> Callable[..., None]:
    """Return the update as one pass over memory; without a C++ compiler a CPU computes it operation
    by operation, in five times the time."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        if device == "cpu":
            get_cpp_compiler()
    except InvalidCxxCompiler:
        return _update_blocks
    return torch.compile(_update_blocks, fullgraph=True, dynamic=True)
