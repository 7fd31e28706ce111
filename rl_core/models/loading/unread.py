"""Weights that stay in their files until a rank needs them.

A model may be built with placeholders (parameters on torch's meta device) in place of its weights.
`Unread` knows the file of each, and puts real ones into a module: for the time of one forward pass,
while a model is probed, or for good, block by block, while it is sharded. So no rank ever holds
more than its shards and one block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from rl_core.kernels import accelerate

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rl_core.kernels import Replaced

UNREAD = "unread_weights"
"""Attribute of a model with placeholders."""


@dataclass(frozen=True)
class Source:
    """File of a weight, its name there, and the format of the placeholder in the model."""

    file: Path
    name: str
    dtype: torch.dtype

    def read(self) -> Tensor:
        """Return the weight on the CPU, in memory of its own."""
        stat = self.file.stat()
        opened = _opened(self.file, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        # A copy: torch's own memory is aligned, and a product of unaligned factors may differ in
        # its last bits.
        return opened.get_tensor(self.name).to(self.dtype, copy=True)


@lru_cache(maxsize=64)
def _opened(file: Path, *version: int) -> Any:
    """Open a file once for its many small reads. Args: version: tells another file of that name."""
    # `pread` rather than a mapped file, whose pages count as this process's memory.
    return safe_open(file, framework="pt", backend="pread")


class Unread:
    """The placeholders of a model and their sources.

    Args: sources: source of each placeholder. layers: repeated blocks of the model, outermost, that
    share no weight with the rest.
    """

    def __init__(
        self, sources: Sequence[tuple[nn.Parameter, Source]], layers: Sequence[nn.Module]
    ) -> None:
        self._sources = {id(placeholder): (placeholder, one) for placeholder, one in sources}
        self.layers = list(layers)

    def __deepcopy__(self, memo: dict[int, Any]) -> Unread:
        """Return the sources of a copied model's placeholders."""
        pairs = []
        for placeholder, source in self._sources.values():
            pairs.append((copy.deepcopy(placeholder, memo), source))
        return Unread(pairs, copy.deepcopy(self.layers, memo))

    def value(self, parameter: Tensor) -> Tensor:
        """Return the weight behind a placeholder, as the model was built; anything else is returned
        itself."""
        found = self._sources.get(id(parameter))
        return parameter if found is None else found[1].read()

    def read_into(
        self, parts: Iterable[nn.Module], read_one: Callable[[Tensor], Tensor] | None = None
    ) -> dict[int, nn.Parameter]:
        """Put weights in place of the placeholders that are parts' own, each in the placeholder's
        format.

        Args: read_one: gives what else stands in for a placeholder. Returns: the placeholder of
        each new parameter, by the parameter's id.
        """
        read: dict[int, nn.Parameter] = {}
        for part, name, one in _parameters(parts):
            found = self._sources.get(id(one))
            if found is None:
                continue
            if id(one) not in read:
                weight = (found[1].read() if read_one is None else read_one(one)).to(one.dtype)
                read[id(one)] = nn.Parameter(weight, requires_grad=one.requires_grad)
            setattr(part, name, read[id(one)])
        return {id(weight): self._sources[key][0] for key, weight in read.items()}

    @contextmanager
    def at_hand(self, module: nn.Module) -> Iterator[None]:
        """Keep the weights of a module in memory during the block; its parts may be replaced
        meanwhile by others that take them over."""
        placeholders = self.read_into(module.modules())
        try:
            yield
        finally:
            _put_back(module, placeholders)

    @contextmanager
    def streamed(self, model: nn.Module, keep: float, room_bytes: int) -> Iterator[None]:
        """Let a model compute during the block: each layer's weights are read before its forward
        pass and dropped after it, what is outside of the layers is kept.

        Gradients reach no further than one layer, whose weights would otherwise be kept for them.
        Args: keep: share of the layers that are kept, too, so that they are read once.
        room_bytes: more are kept if all that are fit into it.
        """
        largest = max(map(_num_bytes, self.layers))
        num_kept = max(int(keep * len(self.layers)), room_bytes // largest)
        dropped = self.layers[num_kept:]
        inside = {id(part) for layer in dropped for part in layer.modules()}
        outside = self.read_into(part for part in model.modules() if id(part) not in inside)
        with ExitStack() as stack:
            stack.callback(_put_back, model, outside)
            for layer in dropped:
                held = ExitStack()

                def before(module: nn.Module, inputs: object, held: ExitStack = held) -> None:
                    held.enter_context(self.at_hand(module))

                def after(
                    module: nn.Module, inputs: object, output: object, held: ExitStack = held
                ) -> object:
                    held.close()
                    return tree_map(_detached, output)

                stack.callback(layer.register_forward_pre_hook(before).remove)
                stack.callback(layer.register_forward_hook(after, always_call=True).remove)
            yield


def unread_of(model: nn.Module) -> Unread | None:
    """Return the sources of a model's placeholders; None if it has its weights."""
    return vars(model).get(UNREAD)


@contextmanager
def stood_in(model: nn.Module) -> Iterator[None]:
    """Let tensors without memory of their own on the CPU stand in for a model's placeholders during
    the block, for code that makes new parameters where it finds the old ones; a placeholder takes
    over whether it is trained."""
    unread = unread_of(model)
    if unread is None:
        yield
        return
    placeholders = unread.read_into(model.modules(), _nowhere)
    try:
        yield
    finally:
        _put_back(model, placeholders)


def _nowhere(placeholder: Tensor) -> Tensor:
    return torch.zeros((), dtype=placeholder.dtype).expand(placeholder.shape)


def device_of(model: nn.Module) -> torch.device:
    """Return the device on which a model computes, also where placeholders come first."""
    return next(one.device for one in model.parameters() if not one.is_meta)


def accelerated(model: PreTrainedModel) -> Replaced:
    """Put fast modules into a model, as `accelerate`, which compares them on the weights."""
    unread = unread_of(model)
    if unread is None:
        return accelerate(model, model.device)
    device = torch.device("cpu")
    # Those outside of the layers; placeholders are passed over.
    replaced = accelerate(model, device)
    for layer in unread.layers:
        with unread.at_hand(layer):
            replaced.extend(accelerate(layer, device))
    return replaced


def _parameters(parts: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, str, nn.Parameter]]:
    for part in parts:
        for name, one in list(part._parameters.items()):
            if one is not None:
                yield part, name, one


def _num_bytes(module: nn.Module) -> int:
    return sum(one.numel() * one.element_size() for one in module.parameters())


def _put_back(module: nn.Module, placeholders: Mapping[int, nn.Parameter]) -> None:
    for part, name, one in _parameters(module.modules()):
        if id(one) in placeholders:
            setattr(part, name, placeholders[id(one)].requires_grad_(one.requires_grad))


def _detached(value: object) -> object:
    if isinstance(value, Tensor) and value.requires_grad:
        return value.detach()
    return value
