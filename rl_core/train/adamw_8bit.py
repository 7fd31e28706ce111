"""AdamW whose two running means are stored in 8 bits (arXiv 2110.02861), by bitsandbytes.

A mean is stored as codes of one byte, and each block of 64 to 256 neighbours has a scale. Blocks
here never cross a row. So codes and scales are sharded as their parameter is, a step computes the
same on any number of ranks, and a checkpoint loads on any number of them. Vectors, small matrices,
and matrices whose rows are no multiple of 64 keep means in full precision.
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
"""Size below which means keep full precision, as in bitsandbytes."""
BLOCKS = (256, 128, 64)
"""Sizes of a block, the preferred ones first."""
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
        num_blocks = PIECE // block
        for start in range(0, len(values), num_blocks):
            some = slice(start, start + num_blocks)
            means = [(codes[name][some], scales[name][some]) for name in MEANS]
            _update_blocks(values[some], gradients[some], float(state[STEP]), means, group)


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
    from bitsandbytes.functional import create_dynamic_map

    return tuple(create_dynamic_map(is_signed).to(device) for is_signed in MEANS.values())


def _update_blocks(
    values: Tensor,
    gradients: Tensor,
    step: float,
    means: list[tuple[Tensor, Tensor]],
    group: dict[str, Any],
) -> None:
    """Update blocks [N, block] and the codes [N, block] and scales [N] of their means in place."""
    from bitsandbytes.functional import dequantize_blockwise, quantize_blockwise

    gradients, block = gradients.float(), values.shape[1]
    targets = (gradients, gradients.square())
    corrected = []
    for (codes, scales), levels, target, beta in zip(
        means, _levels(values.device), targets, group["betas"], strict=True
    ):
        mean = dequantize_blockwise(codes, absmax=scales, code=levels, blocksize=block)
        mean.lerp_(target, 1 - beta)
        quantize_blockwise(mean, code=levels, blocksize=block, out=codes, absmax=scales)
        corrected.append(mean.div_(1 - beta**step))
    mean, square = corrected
    rate = group["lr"]
    values.mul_(1 - rate * group["weight_decay"])
    values.sub_(mean.div_(square.sqrt_().add_(group["eps"])), alpha=rate)
