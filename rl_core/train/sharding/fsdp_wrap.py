"""The FSDP2 wrap (arXiv 2304.11277): sharding of modules by `FSDPConfig`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rl_core.models.loading.unread import unread_of
from rl_core.models.modes import evaluation_mode
from rl_core.models.quantized import unpacked_weights
from rl_core.train.sharding.expert_parallel import ExpertParallel, whole_experts
from rl_core.train.sharding.meshes import SHARD_DIMENSION
from schemas.recipe import DType, FSDPConfig
from schemas.sections.policy import FSDPMode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

P = TypeVar("P", bound=nn.Module)
DTYPES = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT32: torch.float32}


def reshards_after_forward(config: FSDPConfig, num_shards: int) -> bool:
    """Return True if gathered parameters are freed between a block's forward and backward pass."""
    if config.reshard_after_forward is not None:
        return config.reshard_after_forward
    return config.fsdp_mode is FSDPMode.FULL and num_shards > 1


def cast_parameters(module: nn.Module, dtype: DType) -> None:
    """Store all parameters in `dtype`; buffers (rotary frequencies) stay."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(DTYPES[dtype])


def cast_to_stored(
    policy: nn.Module, blocks: list[nn.Module], config: FSDPConfig, keep: Callable[[str], bool]
) -> None:
    """Store each parameter of an unwrapped policy in its format; those whose name `keep` selects
    stay unchanged.

    Trained parameters are stored in `master_dtype`. Frozen ones are never updated, and are stored
    in the format in which they are gathered and computed; unwrapped parameters are not gathered,
    and use the master format for both.
    """
    wrapped = [policy] if config.root_wrap else blocks
    gathered = {id(parameter) for module in wrapped for parameter in module.parameters()}
    for name, parameter in policy.named_parameters():
        if not keep(name):
            is_computed = id(parameter) in gathered and not parameter.requires_grad
            parameter.data = parameter.data.to(
                DTYPES[config.param_dtype if is_computed else config.master_dtype]
            )


def shard(
    policy: nn.Module,
    blocks: list[nn.Module],
    config: FSDPConfig,
    mesh: DeviceMesh,
    num_shards: int,
    experts: ExpertParallel | None = None,
) -> None:
    """Wrap the blocks one by one and then, unless `root_wrap` is off, the rest, in place, on the
    mesh's device.

    The policy must be complete: nothing can be injected afterwards. Weights that were left in their
    files are read block by block, so that one is whole at a time. Args: num_shards: ranks of the
    mesh that together hold one copy. experts: ranks over which stacks of experts are dealt out.
    """
    unread = unread_of(getattr(policy, "language_model", policy))
    if unread is None and not config.cpu_offload:
        policy.to(mesh.device_type)
    options: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": reshards_after_forward(config, num_shards),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=DTYPES[config.param_dtype], reduce_dtype=DTYPES[config.reduce_dtype]
        ),
    }
    if config.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    for block in blocks:
        if unread is not None:
            unread.read_into(block.modules())
        if experts is not None:
            _shard_experts(block, experts, options)
        if config.torch_compile:
            block.compile()
        fully_shard(block, **options)
    if unread is not None:
        unread.read_into(policy.modules())
    if experts is not None:
        _shard_experts(policy, experts, options)
    if config.root_wrap:
        fully_shard(policy, **options)
    else:
        for tensor in [*unsharded_parameters(policy), *policy.buffers()]:
            tensor.data = tensor.data.to(mesh.device_type)
    _prefetch(blocks, config.forward_prefetch)
    # FSDP2 takes the unit that runs first for the root, which in decoding may be a block. This can
    # go when torch lets the root be named.
    for unit in units(policy):
        unit._get_fsdp_state()._lazy_init()


@contextmanager
def gathered(policy: P, config: FSDPConfig, num_shards: int) -> Iterator[P]:
    """Yield a wrapped policy with all its parameters gathered, in evaluation mode, without
    gradients and uncompiled."""
    wrapped, resharded = units(policy), reshards_after_forward(config, num_shards)
    for unit in wrapped:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(whole_experts(policy))
            stack.enter_context(evaluation_mode(policy))
            if next(policy.parameters()).device.type == "cpu":
                # A CPU unpacks more slowly than it multiplies, token by token.
                stack.enter_context(unpacked_weights(policy, DTYPES[config.param_dtype]))
            if config.torch_compile:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield policy
    finally:
        for unit in wrapped:
            unit.set_reshard_after_forward(resharded, recurse=False)
            unit.reshard()


@contextmanager
def block_by_block(policy: nn.Module, config: FSDPConfig, num_shards: int) -> Iterator[None]:
    """Free what each forward pass of a wrapped policy gathered as soon as it has run, during the
    block, so that no rank holds a copy of the whole model."""
    resharded = reshards_after_forward(config, num_shards)
    try:
        for unit in units(policy):
            unit.set_reshard_after_forward(num_shards > 1, recurse=False)
        yield
    finally:
        for unit in units(policy):
            unit.set_reshard_after_forward(resharded, recurse=False)
            unit.reshard()


def units(policy: nn.Module) -> list[FSDPModule]:
    """Return the FSDP-wrapped modules, the root first."""
    return [module for module in policy.modules() if isinstance(module, FSDPModule)]


def reshard(policy: nn.Module) -> None:
    """Free the gathered copies of all parameters."""
    for unit in units(policy):
        unit.reshard()


def unsharded_parameters(policy: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that the wrap left whole on every rank; call while the wrapped modules
    are sharded."""
    return [parameter for parameter in policy.parameters() if not _is_sharded(parameter)]


def _is_sharded(parameter: nn.Parameter) -> bool:
    """Return True if FSDP holds it; a weight matrix cut by tensor parallelism alone is on another
    mesh."""
    return isinstance(parameter, DTensor) and SHARD_DIMENSION in (
        parameter.device_mesh.mesh_dim_names or ()
    )


def _shard_experts(module: nn.Module, experts: ExpertParallel, options: dict[str, Any]) -> None:
    """Deal out the stacks of experts inside a module, and wrap each with the ranks that hold the
    same ones."""
    # The block has cast its inputs already; the router's weights keep the format that it gave them.
    policy = replace(options["mp_policy"], cast_forward_inputs=False)
    for stack in experts.cut(module):
        fully_shard(stack, **{**options, "mesh": experts.shard_mesh, "mp_policy": policy})


def _prefetch(blocks: list[nn.Module], ahead: int) -> None:
    wrapped: list[FSDPModule] = [block for block in blocks if isinstance(block, FSDPModule)]
    if ahead:
        for index, block in enumerate(wrapped):
            block.set_modules_to_forward_prefetch(wrapped[index + 1 : index + 1 + ahead])
