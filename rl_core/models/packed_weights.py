"""The weights of linear layers laid out once for a processor's products, while nothing changes them.

oneDNN otherwise rearranges a weight matrix for every product with it, which costs more than the product itself where
there are few rows, as in decoding. Layers that read the same states are one product. Where the processor multiplies in
bfloat16, the result stays the same in that format, bit by bit; elsewhere the copy is in float32, see `wide_products`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rl_core.wide_products import has_bfloat16_products

FORMATS = (torch.bfloat16, torch.float32)
"""That oneDNN has packed products for."""
READ_THE_SAME = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""What transformers calls the layers of one module that do, in the order of their calls."""


@contextmanager
def packed_weights(model: nn.Module) -> Iterator[None]:
    """For the block, every plain linear layer of a model multiplies with a packed copy of its weight, without gradient.

    Weights must be whole and must not change. On other devices than CPUs with oneDNN nothing happens.
    """
    groups = _groups(model) if _can_pack() else []
    try:
        for group in groups:
            product = _Product(group)
            for index, layer in enumerate(group):
                layer.forward = partial(product.part, index)
        yield
    finally:
        for layer in chain(*groups):
            vars(layer).pop("forward", None)


class _Product:
    """One product for layers that read the same states: the first to be called computes it for all."""

    def __init__(self, layers: list[Any]) -> None:
        weight = layers[0].weight if len(layers) == 1 else torch.cat([layer.weight for layer in layers])
        self.kept, self.computed = weight.dtype, weight.dtype if has_bfloat16_products() else torch.float32
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().to(self.computed), None)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases).to(self.computed) if biases else None
        self.sizes = [layer.out_features for layer in layers]
        self.held: tuple[Tensor | None, tuple[Tensor, ...]] = (None, ())
        """What the states were, and what each layer made of them."""

    def part(self, index: int, states: Tensor) -> Tensor:
        """What the group's layer of this index makes of the states."""
        seen, parts = self.held
        if states is not seen:
            whole = torch.ops.mkldnn._linear_pointwise(states.to(self.computed), self.weight, self.bias, "none", [], "")
            parts = whole.to(self.kept).split(self.sizes, dim=-1)
        is_last = index == len(self.sizes) - 1
        self.held = (None, ()) if is_last else (states, parts)
        return parts[index]


def _can_pack() -> bool:
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _is_plain(module: Any) -> bool:
    """Whether a module is no more than a product with a matrix that lies here as a whole."""
    if type(module) is not nn.Linear or "forward" in vars(module) or isinstance(module.weight, DTensor):
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype in FORMATS


def _groups(model: nn.Module) -> list[list[Any]]:
    """All plain layers of a model, those that read the same states together."""
    groups: list[list[Any]] = []
    for module in model.modules():
        for names in READ_THE_SAME:
            layers = [getattr(module, name, None) for name in names]
            if all(map(_is_plain, layers)) and len(set(map(_kind, layers))) == 1:
                groups.append(layers)
    grouped = set(chain(*groups))
    return groups + [[module] for module in model.modules() if _is_plain(module) and module not in grouped]


def _kind(layer: Any) -> tuple[Any, ...]:
    """What layers must have in common to be one product."""
    return layer.in_features, layer.weight.dtype, layer.bias is None
