"""Router replay: training sends each token to the experts that sampling sent it to (R3, "rollout
routing replay", arXiv 2510.11370).

A router scores the experts of its block for each token, and the block computes the best K. Training
scores them again, with other kernels, roundings or newer weights. Where two experts are nearly
equal another one is chosen, and the token's log-probability then differs by far more than rounding.
While a `Recording` is in effect, the blocks note the experts that they choose; while a `Replay` is,
they compute those that it gives. The weights of the experts always come from the router's present
scores, so that it has a gradient.

The choice is the `topk` over all experts that a block of transformers calls, whatever the family
does with its result, so no family's code is repeated here. A block that chooses in another way is
refused.

Axes: N tokens of a pass, M blocks with experts, K chosen experts, E experts, R rows, S positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rl_core.errors import ModelError

IN_PARTS = "_is_expert_parallel"
"""Attribute that transformers gives every stack of experts that it can compute in parts."""
_ROUTED = "router_replay"
"""Attribute of a block whose choices can be recorded and replayed."""
_WRAPPED = ".base_layer"
"""End of the name of a stack of experts that peft has wrapped."""
_TOP_K = (torch.topk, torch.Tensor.topk)
_MOST_IN_A_BYTE = 256


class Routing(Protocol):
    """Decides which experts the blocks compute, and takes note of them."""

    def choose(self, block: int, own_NK: Tensor) -> Tensor:
        """Return the experts to compute. Args: own_NK: the router's own choice."""
        ...

    def note(self, block: int, chosen_NK: Tensor) -> None:
        """Take note of the experts of a pass."""


_in_effect: ContextVar[Routing | None] = ContextVar("routing in effect", default=None)


class Recording:
    """Notes the experts that each block chooses."""

    def __init__(self) -> None:
        self._noted: dict[int, list[Tensor]] = {}

    def choose(self, block: int, own_NK: Tensor) -> Tensor:
        """Return the router's own choice."""
        return own_NK

    def note(self, block: int, chosen_NK: Tensor) -> None:
        """Keep the experts of a pass."""
        self._noted.setdefault(block, []).append(chosen_NK)

    def take(self, num_rows: int) -> Tensor:
        """Return the experts noted since the last call, [R, S, M, K], and forget them. Args:
        num_rows: rows that were read, all of one length, in one pass or in one after the other."""
        chosen_NMK = torch.stack([torch.cat(self._noted[one]) for one in sorted(self._noted)], 1)
        self._noted = {}
        return chosen_NMK.view(num_rows, -1, *chosen_NMK.shape[1:])


class Replay:
    """Gives each token its experts.

    Args: given_NMK: in the order in which the pass has its tokens; -1 leaves a token to the router.
    """

    def __init__(self, given_NMK: Tensor) -> None:
        self._given_NMK = given_NMK

    def choose(self, block: int, own_NK: Tensor) -> Tensor:
        """Return the given experts, and the router's own choice for tokens without."""
        given_NK = self._given_NMK[:, block].to(own_NK.dtype)
        return torch.where(given_NK < 0, own_NK, given_NK)

    def note(self, block: int, chosen_NK: Tensor) -> None:
        """Do nothing."""


@contextmanager
def routed_by(routing: Routing | None) -> Iterator[None]:
    """Let a routing be in effect during the block, in this thread; None leaves the routers
    alone."""
    token = _in_effect.set(routing)
    try:
        yield
    finally:
        _in_effect.reset(token)


def recomputed_alike() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a forward pass and of its recomputation in the backward pass, which
    another thread may run when the routing is not in effect any more: `context_fn` of torch's
    `checkpoint`."""
    return nullcontext(), routed_by(_in_effect.get())


def stacks_of_experts(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that hold the experts of a block, by name."""
    return {name: one for name, one in model.named_modules() if IN_PARTS in vars(one)}


def enable_router_replay(model: nn.Module, layers: Collection[str]) -> None:
    """Let routings have an effect on the blocks of a transformers model.

    Args: layers: names of the classes that are recomputed as a whole. Raises: ModelError when it
    has no experts, or no block of their own for them. A block that does not choose them by `topk`
    raises one in its first pass.
    """
    stacks = stacks_of_experts(model)
    if not stacks:
        raise ModelError(
            f"rollout.router_replay: {type(model).__name__} has no experts that a router chooses; "
            "leave it out"
        )
    for number, (path, stack) in enumerate(stacks.items()):
        while path.endswith(_WRAPPED):
            path = path.removesuffix(_WRAPPED)
        block = model.get_submodule(path.rpartition(".")[0])
        # A recomputed layer is called inside of what is put around it here.
        if any(cls.__name__ in layers for cls in type(block).__mro__):
            raise ModelError(
                f"rollout.router_replay: {type(block).__name__} has its experts beside its "
                "attention, which cannot be replayed; leave it out"
            )
        if _ROUTED not in vars(block):
            setattr(block, _ROUTED, _RoutedBlock(number, block, stack))


class _RoutedBlock:
    """A block with experts, and the routing in effect around its forward."""

    def __init__(self, number: int, block: nn.Module, stack: nn.Module) -> None:
        self._number, self._name = number, type(block).__name__
        self._num_experts: int = stack.num_experts  # type: ignore[assignment]
        self._forward: Callable[..., object] = block.forward
        self._choice: _Choice | None = None
        self._is_checked = False
        block.forward = self.forward  # type: ignore[method-assign]
        stack.register_forward_pre_hook(self._check)

    def forward(self, *args: Any, **kwargs: Any) -> object:
        routing = _in_effect.get()
        if routing is None:
            return self._forward(*args, **kwargs)
        with _Choice(routing, self._number, self._num_experts) as choice:
            self._choice = choice
            output = self._forward(*args, **kwargs)
        self._choice = None
        if choice.chosen_NK is None:
            raise self._refusal("chooses its experts by something else than topk")
        narrow = torch.uint8 if self._num_experts <= _MOST_IN_A_BYTE else torch.int16
        routing.note(self._number, choice.chosen_NK.to(narrow))
        return output

    def _check(self, stack: nn.Module, args: tuple[Any, ...]) -> None:
        """Compare the first choice with what the stack of experts is asked for."""
        if self._choice is None or self._is_checked:
            return
        chosen_NK = self._choice.chosen_NK
        asked: Tensor | None = args[1] if len(args) > 1 else None
        if chosen_NK is not None:
            is_same = asked is not None and torch.equal(asked.reshape(chosen_NK.shape), chosen_NK)
            if not is_same:
                raise self._refusal("computes other experts than those that its topk gives")
        self._is_checked = True

    def _refusal(self, what: str) -> ModelError:
        return ModelError(
            f"rollout.router_replay: {self._name} {what}, which cannot be replayed; leave it out"
        )


class _Choice(TorchFunctionMode):
    """Puts the experts of a routing in the place of those that `topk` finds.

    A router that first compares groups of experts calls it more than once if it has one group of
    all. The last call is the choice.
    """

    def __init__(self, routing: Routing, block: int, num_experts: int) -> None:
        super().__init__()
        self._routing, self._block, self._num_experts = routing, block, num_experts
        self.chosen_NK: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if func not in _TOP_K:
            return found
        scores: Tensor = args[0] if args else (kwargs or {})["input"]
        if scores.shape[-1] != self._num_experts:
            return found
        own: Tensor = found.indices
        self.chosen_NK = self._routing.choose(self._block, own.reshape(-1, own.shape[-1]))
        chosen = self.chosen_NK.view_as(own)
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))
