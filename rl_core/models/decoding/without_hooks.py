"""A sharded module with gathered weights, without the hooks that FSDP2 runs before and after each
forward.

They cost more than the products of a decoding step. torch has no switch for them, so the two hooks
are removed from the module's own tables, by the handles that FSDP2 keeps; this can go when torch
offers a switch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.hooks import RemovableHandle

Hook: TypeAlias = Callable[..., object]


@contextmanager
def without_hooks(policy: nn.Module) -> Iterator[None]:
    """Run gathered modules without FSDP's work before and after each, during the block, for many
    short passes.

    Nothing is gathered or freed then, and inputs are not cast: they must already have the compute
    format.
    """
    wrapped = [module for module in policy.modules() if isinstance(module, FSDPModule)]
    hooks = [(unit._forward_pre_hooks, unit._forward_hooks) for unit in wrapped]
    try:
        for unit in wrapped:
            state = unit._get_fsdp_state()
            unit._forward_pre_hooks = _all_but(
                unit._forward_pre_hooks, state._pre_forward_hook_handle
            )
            unit._forward_hooks = _all_but(unit._forward_hooks, state._post_forward_hook_handle)
        yield
    finally:
        for unit, (before, after) in zip(wrapped, hooks, strict=True):
            unit._forward_pre_hooks, unit._forward_hooks = before, after


def _all_but(hooks: dict[int, Hook], handle: RemovableHandle) -> dict[int, Hook]:
    return OrderedDict((number, hook) for number, hook in hooks.items() if number != handle.id)
