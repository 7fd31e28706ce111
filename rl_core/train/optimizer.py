"""The optimizer of a recipe, and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from rl_core.train import adamw_8bit
from rl_core.train.adamw_8bit import AdamW8bit
from rl_core.train.muon import MATRICES, STEP, MuonWithAdamW, initial_state
from schemas.recipe import LrSchedulerConfig, OptimizerConfig
from schemas.sections.optimizer import OptimizerKind
from schemas.sections.policy import LrSchedulerKind

MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's keys of the running means of the gradient and of its square."""


def make_optimizer(
    parameters: Iterable[Parameter],
    config: OptimizerConfig,
    matrices: Collection[Parameter] = (),
) -> AdamW:
    """Return the optimizer over the trainable parameters, in one pass over memory each.

    Parameters on different meshes, and plain ones, are separate groups: the fused step takes one
    kind at a time. Args: matrices: those among the parameters that Muon updates, if it is chosen.
    """
    with_muon = config.name is OptimizerKind.MUON
    chosen = {id(matrix) for matrix in matrices} if with_muon else set()
    alike: dict[tuple[DeviceMesh | None, bool], list[Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            alike.setdefault((mesh, id(parameter) in chosen), []).append(parameter)
    options = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.eps,
        "weight_decay": config.weight_decay,
        "fused": True,
    }
    if not with_muon:
        rule = AdamW8bit if config.name is OptimizerKind.ADAMW_8BIT else AdamW
        return rule([{"params": some} for some in alike.values()], **options)
    groups = [{"params": some, MATRICES: flag} for (_, flag), some in alike.items()]
    return MuonWithAdamW(groups, momentum=config.momentum, **options)


def add_moments(optimizer: AdamW) -> None:
    """Give parameters without an update the optimizer's initial state: zeros, no step taken."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if optimizer.state[parameter]:
                continue
            block = adamw_8bit.block_of(parameter) if isinstance(optimizer, AdamW8bit) else None
            if group.get(MATRICES):
                optimizer.state[parameter] = initial_state(parameter)
            elif block is not None:
                optimizer.state[parameter] = adamw_8bit.initial_state(parameter, block)
            else:
                zeros = {}
                for name in MOMENTS:
                    zeros[name] = torch.zeros_like(parameter, requires_grad=False)
                step = torch.zeros((), device=parameter.device)
                optimizer.state[parameter] = {STEP: step, **zeros}


def kind_of(optimizer: AdamW) -> OptimizerKind:
    """Return which optimizer this is."""
    if isinstance(optimizer, MuonWithAdamW):
        return OptimizerKind.MUON
    return OptimizerKind.ADAMW_8BIT if isinstance(optimizer, AdamW8bit) else OptimizerKind.ADAMW


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
    if config.kind is LrSchedulerKind.LINEAR:
        falling = 1 - progress
    else:
        falling = 0.5 * (1 + math.cos(math.pi * progress))
    return config.min_ratio + (1 - config.min_ratio) * falling
