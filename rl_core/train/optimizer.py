"""AdamW and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from schemas.recipe import LrSchedulerConfig, OptimizerConfig
from schemas.sections.policy import LrSchedulerKind

STEP = "step"
"""AdamW's key of a parameter's update count."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's keys of the running means of the gradient and of its square."""


def make_optimizer(parameters: Iterable[Parameter], config: OptimizerConfig) -> AdamW:
    """Return AdamW over the trainable parameters, in one pass over memory each.

    Parameters on different meshes, and plain ones, are separate groups: the fused step takes one
    kind at a time.
    """
    by_mesh: dict[DeviceMesh | None, list[Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            by_mesh.setdefault(
                parameter.device_mesh if isinstance(parameter, DTensor) else None, []
            ).append(parameter)
    return AdamW(
        [{"params": alike} for alike in by_mesh.values()],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def add_moments(optimizer: AdamW) -> None:
    """Give parameters without an update AdamW's initial state: zeros, no step taken."""
    for parameter in (one for group in optimizer.param_groups for one in group["params"]):
        if not optimizer.state[parameter]:
            zeros = {name: torch.zeros_like(parameter, requires_grad=False) for name in MOMENTS}
            optimizer.state[parameter] = {STEP: torch.zeros((), device=parameter.device), **zeros}


def make_scheduler(optimizer: AdamW, config: LrSchedulerConfig, total_steps: int) -> LambdaLR:
    """Return the schedule per optimizer step: linear warm-up, then constant, linear or cosine down
    to `min_ratio`."""
    return LambdaLR(optimizer, lambda step: rate_factor(config, step, total_steps))


def rate_factor(config: LrSchedulerConfig, step: int, total_steps: int) -> float:
    """Return the rate of a step (from 0) as a share of the peak. After `total_steps` it stays
    constant."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.kind is LrSchedulerKind.CONSTANT:
        return 1.0
    span = max(1, total_steps - config.warmup_steps)
    progress = min(1.0, (step - config.warmup_steps) / span)
    falling = (
        1 - progress
        if config.kind is LrSchedulerKind.LINEAR
        else 0.5 * (1 + math.cos(math.pi * progress))
    )
    return config.min_ratio + (1 - config.min_ratio) * falling
