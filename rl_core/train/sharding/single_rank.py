"""FSDP2 on a rank that shares its weights with no other: gathered once per optimizer step,
gradients added in place.

For every micro-batch FSDP2 copies each block on its way to the other ranks and its gradient on the
way back, even where there is no other rank: on a CPU a third of a training step. What is computed
stays the same, bit by bit.

This takes hold of FSDP2's own parameters, for which torch has no public name. It can go when
`fully_shard` copies nothing on a mesh of one.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from rl_core.train.gradients import add_gradient
from rl_core.train.sharding import fsdp_wrap


def add_gradients_in_place(policy: nn.Module, reduce_dtype: torch.dtype) -> None:
    """Add each gradient of a wrapped policy directly to that of its shard, which here is the whole
    parameter.

    Args: reduce_dtype: the format in which they would be sent, and are rounded to.
    """
    for unit in fsdp_wrap.units(policy):
        unit.unshard()
        for group in unit._get_fsdp_state()._fsdp_param_groups:
            for parameter in group.fsdp_params:
                if parameter.sharded_param.requires_grad:
                    # A cycle through a tensor's hooks would keep the model, its memory and its
                    # process group for ever.
                    hook = partial(_add, ref(parameter), reduce_dtype)
                    parameter.unsharded_param.register_post_accumulate_grad_hook(hook)
        unit.reshard()


def keep_gathered(policy: nn.Module, keep: bool) -> None:
    """Set whether the next backward pass leaves the policy's parameters gathered for the passes
    after it."""
    for unit in fsdp_wrap.units(policy):
        unit.set_reshard_after_backward(not keep, recurse=False)


def _add(owner: ref[Any], reduce_dtype: torch.dtype, gathered: Tensor) -> None:
    """Add a gradient, so that FSDP2 finds nothing left to reduce afterwards."""
    parameter, gradient = owner(), gathered.grad
    assert parameter is not None and gradient is not None
    shard = parameter.sharded_param
    gathered.grad = None
    if torch.promote_types(gradient.dtype, reduce_dtype) != reduce_dtype:
        gradient = gradient.to(reduce_dtype)
    if shard.grad is None:
        shard.grad = parameter.to_sharded_dtensor(gradient.to(shard.dtype))
    else:
        add_gradient(shard.grad._local_tensor, gradient)
