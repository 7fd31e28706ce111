"""Expert parallelism: the experts of each mixture are dealt out over the ranks of an `ep` mesh
(GShard, arXiv 2006.16668).

transformers stores the experts of a block as stacks [E, ...], and each rank keeps E / ranks of them
in order. In the block, the ranks gather each other's tokens with the router's choices, each
computes what its experts add to all of them, and a sum over the ranks brings every token's output
back to its own rank. The router and everything else are computed by each rank for its own rows.

Shapes: N tokens of this rank, M the most that a rank has, R ranks, H hidden size, K experts of a
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.functional import pad

from rl_core.errors import ModelError
from rl_core.kernels import AutogradContext
from rl_core.models.decoding.router_replay import IN_PARTS, stacks_of_experts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_CUT = "expert_parallel"
"""Attribute of a module whose experts are dealt out."""

Experts = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A stack's forward: hidden states [N, H], experts [N, K] and their weights [N, K] to outputs
[N, H]."""


def check_expert_parallel(model: nn.Module, ep_size: int) -> None:
    """Check that a model has stacks of experts without adapters, which divide by `ep_size`.

    Raises: ModelError when not.
    """
    from peft.tuners.lora import LoraLayer

    where, name = f"placement.ep_size {ep_size}", _class_name(model)
    stacks = stacks_of_experts(model)
    if not stacks:
        raise ModelError(
            f"{where}: {name} has no stacks of experts that transformers computes in parts; set "
            "placement.ep_size to 1"
        )
    for path, stack in stacks.items():
        num_experts = int(getattr(stack, "num_experts", 0))
        held = list(stack.named_parameters())
        if not num_experts or any("." in key or len(one) != num_experts for key, one in held):
            raise ModelError(
                f"{where}: {path} of {name} holds other weights beside its {num_experts} experts'; "
                "set placement.ep_size to 1"
            )
        if num_experts % ep_size:
            sizes = range(1, num_experts + 1)
            fitting = ", ".join(str(size) for size in sizes if num_experts % size == 0)
            raise ModelError(
                f"{where} does not divide the {num_experts} experts of {name}; sizes that fit: "
                f"{fitting}"
            )
    for path, module in model.named_modules():
        if stacks_of_experts(module) and isinstance(module, LoraLayer):
            raise ModelError(
                f"lora.target_modules: {path} adapts experts, which carry no adapter under expert "
                "parallelism; leave it out, or set placement.ep_size to 1"
            )


class ExpertParallel:
    """The ranks that share experts.

    Args: mesh: those ranks, of one dimension. shard_mesh: the ranks with the same experts, over
    which FSDP shards them further.
    """

    def __init__(self, mesh: DeviceMesh, shard_mesh: DeviceMesh) -> None:
        self.mesh, self.shard_mesh = mesh, shard_mesh

    def cut(self, module: nn.Module) -> list[nn.Module]:
        """Keep this rank's experts of all stacks inside a module, which every rank holds whole.

        Returns: the stacks, which FSDP has to wrap one by one.
        """
        found = list(stacks_of_experts(module).values())
        stacks = [stack for stack in found if _CUT not in vars(stack)]
        for stack in stacks:
            setattr(stack, _CUT, CutStack(stack, self.mesh))
        return stacks


class CutStack:
    """A stack of which this rank holds a part, and the exchange of tokens around its forward."""

    def __init__(self, stack: nn.Module, mesh: DeviceMesh) -> None:
        self._stack, self._group = stack, mesh.get_group()
        self._num_experts: int = stack.num_experts  # type: ignore[assignment]
        self._num_here = self._num_experts // mesh.size()
        self._first = self._num_here * mesh.get_local_rank()
        self._forward: Experts = stack.forward
        self._whole: dict[str, Tensor] | None = None
        for name, value in list(stack.named_parameters(recurse=False)):
            here = value.detach()[self._first : self._first + self._num_here].clone()
            part = DTensor.from_local(here, mesh, [Shard(0)], run_check=False)
            stack._parameters[name] = nn.Parameter(part, requires_grad=value.requires_grad)
        stack.forward = self.forward  # type: ignore[method-assign]

    def forward(self, states_NH: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
        """Return the outputs of all experts for this rank's tokens. Collective, except inside
        `whole_experts`."""
        if self._whole is not None:
            with self._computing(self._whole, self._num_experts, is_part=False):
                return self._forward(states_NH, chosen_NK, weights_NK)
        local: dict[str, Tensor] = {}
        for name, value in self._stack.named_parameters(recurse=False):
            assert isinstance(value, DTensor)
            local[name] = value.to_local()
            if local[name].requires_grad:
                # It has the tokens of all ranks of this mesh, and FSDP takes the mean over those
                # with the same experts alone.
                local[name].register_hook(self._shared)
        with self._computing(local, self._num_here, is_part=True):
            return self._exchanged(states_NH, chosen_NK, weights_NK)

    def _exchanged(self, states_NH: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
        num_tokens = len(states_NH)
        short = _most_tokens(num_tokens, self._group, states_NH.device) - num_tokens
        # Padding chooses an expert that nobody has.
        everyone = pad(chosen_NK, (0, 0, 0, short), value=self._num_experts)
        chosen = _all_gather(everyone, self._group) - self._first
        states = _gathered(pad(states_NH, (0, 0, 0, short)), self._group)
        weights = _gathered(pad(weights_NK, (0, 0, 0, short)), self._group)
        elsewhere = (chosen < 0) | (chosen >= self._num_here)
        chosen = chosen.masked_fill(elsewhere, self._num_here)
        weights = weights.masked_fill(elsewhere, 0.0)
        # One more token, of zeros and with weight zero: experts that no token chose get a gradient
        # all the same, for which the ranks with the same experts wait in FSDP's sum.
        outputs = self._forward(
            pad(states, (0, 0, 0, 1)), pad(chosen, (0, 0, 0, 1)), pad(weights, (0, 0, 0, 1))
        )
        return _summed(outputs[:-1], self._group, num_tokens)

    @contextmanager
    def _computing(
        self, values: Mapping[str, Tensor], num_experts: int, *, is_part: bool
    ) -> Iterator[None]:
        """Let the stack compute with plain tensors of so many experts during the block."""
        stack = self._stack
        held = dict(stack._parameters)
        # Written into torch's own table, since a plain tensor cannot be set where a parameter is
        # registered.
        stack._parameters.update(values)  # type: ignore[arg-type]
        vars(stack).update({"num_experts": num_experts, IN_PARTS: is_part})
        try:
            yield
        finally:
            stack._parameters.update(held)
            vars(stack).update({"num_experts": self._num_experts, IN_PARTS: False})

    def _shared(self, gradient: Tensor) -> Tensor:
        return gradient * (self._num_here / self._num_experts)

    def gather(self) -> None:
        """Hold all experts until `release`; call while FSDP has gathered the stack. Collective."""
        whole: dict[str, Tensor] = {}
        for name, value in self._stack.named_parameters(recurse=False):
            assert isinstance(value, DTensor)
            whole[name] = value.full_tensor().detach()
        self._whole = whole

    def release(self) -> None:
        """Free what `gather` gathered."""
        self._whole = None


@contextmanager
def whole_experts(policy: nn.Module) -> Iterator[None]:
    """Hold all experts of a policy on every rank during the block, so that its forward exchanges
    nothing; call while FSDP has gathered it. Collective."""
    cuts: Iterable[CutStack] = [
        vars(stack)[_CUT] for stack in policy.modules() if _CUT in vars(stack)
    ]
    try:
        for cut in cuts:
            cut.gather()
        yield
    finally:
        for cut in cuts:
            cut.release()


def _class_name(model: nn.Module) -> str:
    """Return the name of the class of a model below any adapters."""
    base = getattr(model, "get_base_model", None)
    return type(model if base is None else base()).__name__


def _most_tokens(num_tokens: int, group: ProcessGroup, device: torch.device) -> int:
    most = torch.tensor(num_tokens, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    return int(most)


def _all_gather(values_M: Tensor, group: ProcessGroup) -> Tensor:
    """Return the rows of all ranks, end to end."""
    shape = (len(values_M) * dist.get_world_size(group), *values_M.shape[1:])
    gathered = values_M.new_empty(shape)
    dist.all_gather_single(gathered, values_M.contiguous(), group=group)
    return gathered


def _reduce_scatter(values: Tensor, group: ProcessGroup) -> Tensor:
    """Return the sum over ranks of this rank's rows."""
    shape = (len(values) // dist.get_world_size(group), *values.shape[1:])
    mine = values.new_empty(shape)
    dist.reduce_scatter_single(mine, values.contiguous(), group=group)
    return mine


def _gathered(values_M: Tensor, group: ProcessGroup) -> Tensor:
    return _Gather.apply(values_M, group)  # type: ignore[return-value]


def _summed(values: Tensor, group: ProcessGroup, num_tokens: int) -> Tensor:
    return _Sum.apply(values, group, num_tokens)  # type: ignore[return-value]


class _GroupContext(AutogradContext, Protocol):
    group: ProcessGroup


class _SumContext(_GroupContext, Protocol):
    short: int


class _Gather(torch.autograd.Function):
    """All ranks' rows; what the ranks' gradients say of a row is summed up on its own rank."""

    @staticmethod
    def forward(ctx: _GroupContext, values_M: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(values_M, group)

    @staticmethod
    def backward(ctx: _GroupContext, *gradients: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(gradients[0], ctx.group), None


class _Sum(torch.autograd.Function):
    """This rank's rows without padding, summed over the ranks; each rank gets the gradient of all
    rows."""

    @staticmethod
    def forward(ctx: _SumContext, values: Tensor, group: ProcessGroup, num_tokens: int) -> Tensor:
        summed_MH = _reduce_scatter(values, group)
        ctx.group, ctx.short = group, len(summed_MH) - num_tokens
        # No view, to which a block may add in place: FSDP would then not see the gradient arrive.
        return summed_MH[:num_tokens].clone() if ctx.short else summed_MH

    @staticmethod
    def backward(ctx: _SumContext, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _all_gather(pad(gradients[0], (0, 0, 0, ctx.short)), ctx.group), None, None
