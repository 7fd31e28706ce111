"""The weights of linear layers laid out once for a processor's products, while nothing changes
them.

oneDNN otherwise rearranges a weight matrix for every product with it, which costs more than the
product itself where there are few rows, as in decoding. Layers that read the same states are one
product. Where the processor multiplies in bfloat16, the result of a layer without adapter stays the
same in that format, bit by bit; elsewhere the copy is in float32, see `float32_matmul`.

Adapters (LoRA, arXiv 2106.09685) cost nothing in a copy in float32: it holds W + scaling * B A. In
bfloat16 that sum would lose what the adapter has learnt, so what A makes of the states stands
beside them, and B beside W: one product adds up both and rounds once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad

from rl_core.kernels.float32_matmul import product_dtype

FORMATS = (torch.bfloat16, torch.float32)
"""That oneDNN has packed products for."""
TILE_ROW = 32
"""Numbers in bfloat16 in a row of a tile: products whose sums are a multiple of it long waste
none."""
READ_THE_SAME = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""What transformers calls the layers of one module that do, in the order of their calls."""


@contextmanager
def packed_weights(model: nn.Module, leave: nn.Module | None = None) -> Iterator[Packed]:
    """For the block, every plain linear layer of a model multiplies with a packed copy of its
    weight, without gradient.

    So does a plain layer with one plain adapter. Weights must be whole and must not change. On
    other devices than CPUs with oneDNN nothing happens. Args: leave: a layer that stays as it is.
    Yields: the products.
    """
    groups = _groups(model, leave) if _can_pack() else []
    packed: Packed = {}
    try:
        for group in groups:
            product = packed[tuple(layer.module for layer in group)] = Product(group)
            for index, layer in enumerate(group):
                layer.module.forward = partial(product.part, index)
        yield packed
    finally:
        for layer in chain(*groups):
            vars(layer.module).pop("forward", None)


@dataclass(frozen=True)
class _Layer:
    """What a module computes: base(x), and scaling * B(A(x)) on top where there is an adapter."""

    module: Any
    base: nn.Linear
    adapter: tuple[nn.Linear, nn.Linear, float] | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """What layers must have in common to be one product."""
        return (
            self.base.in_features,
            self.base.weight.dtype,
            self.base.bias is None,
            self.adapter is None,
        )


class Product:
    """One product for layers that read the same states: the first to be called computes it for
    all."""

    def __init__(self, layers: list[_Layer]) -> None:
        bases = [layer.base for layer in layers]
        adapters = [layer.adapter for layer in layers if layer.adapter is not None]
        self.kept = bases[0].weight.dtype
        self.computed = product_dtype(bases[0].weight)
        self.sizes = [base.out_features for base in bases]
        weights: list[Tensor] = [base.weight for base in bases]
        biases: list[Tensor] = [base.bias for base in bases if base.bias is not None]
        self.narrow: Tensor | None = None
        """The A of all adapters."""
        if adapters and self.computed is torch.float32:
            weights = [_merged(layer) for layer in layers]
        elif adapters:
            downs = torch.cat([down.weight for down, _, _ in adapters])
            # Each layer reads its own part of what comes from all the adapters' A.
            ups = torch.block_diag(*(up.weight * scaling for _, up, scaling in adapters))
            short = -(downs.shape[1] + len(downs)) % TILE_ROW
            self.narrow = self._packed([pad(downs, (0, 0, 0, short))])
            weights = [torch.cat([torch.cat(weights), pad(ups, (0, short))], 1)]
        self.weight = self._packed(weights)
        self.bias = torch.cat(biases).to(self.computed) if biases else None
        self.held: tuple[Tensor | None, tuple[Tensor, ...]] = (None, ())
        """What the states were, and what each layer made of them."""

    def part(self, index: int, states: Tensor) -> Tensor:
        """What the group's layer of this index makes of the states."""
        seen, parts = self.held
        if states is not seen:
            parts = self.whole(states).split(self.sizes, dim=-1)
        is_last = index == len(self.sizes) - 1
        self.held = (None, ()) if is_last else (states, parts)
        return parts[index]

    def whole(self, states: Tensor) -> Tensor:
        """Return the outputs of all layers for the states, side by side in the last axis."""
        is_wide = self.computed != self.kept
        states = states.to(self.computed) if is_wide else states
        if self.narrow is not None:
            states = torch.cat([states, _linear(states, self.narrow)], -1)
        whole = _linear(states, self.weight, self.bias)
        return whole.to(self.kept) if is_wide else whole

    def _packed(self, weights: list[Tensor]) -> Tensor:
        whole = weights[0] if len(weights) == 1 else torch.cat(weights)
        return torch.ops.mkldnn._reorder_linear_weight(whole.detach().to(self.computed), None)


Packed = dict[tuple[nn.Module, ...], Product]
"""Products by the layers that they are for, in the order of their calls."""


def _merged(layer: _Layer) -> Tensor:
    """What an adapted layer's product would be, in float32."""
    assert layer.adapter is not None
    down, up, scaling = layer.adapter
    return torch.addmm(
        layer.base.weight.float(), up.weight.float(), down.weight.float(), alpha=scaling
    )


def _linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


def _can_pack() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    )


def _is_plain(module: Any) -> bool:
    """Whether a module is no more than a product with a matrix that lies here as a whole."""
    if (
        type(module) is not nn.Linear
        or "forward" in vars(module)
        or isinstance(module.weight, DTensor)
    ):
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype in FORMATS


def _layer(module: Any) -> _Layer | None:
    """How a module is packed; None for one that is not."""
    if _is_plain(module):
        return _Layer(module, module)
    if not hasattr(module, "lora_A") or "forward" in vars(module):
        return None
    from peft.tuners import lora

    from rl_core.kernels.adapted_linear import plain_parts

    parts = plain_parts(module) if isinstance(module, lora.Linear) else None
    if parts is None or not _is_plain(parts.base):
        return None
    return _Layer(module, parts.base, parts[1:])


def _groups(model: nn.Module, leave: nn.Module | None) -> list[list[_Layer]]:
    """All layers of a model that are packed, those that read the same states together."""
    modules = [module for module in model.modules() if module is not leave]
    layers = {module: layer for module in modules if (layer := _layer(module)) is not None}
    for adapted in [layer for layer in layers.values() if layer.adapter is not None]:
        for inner in adapted.module.modules():
            if inner is not adapted.module:
                layers.pop(inner, None)
    groups: list[list[_Layer]] = []
    for module in model.modules():
        for names in READ_THE_SAME:
            group = [
                layers[layer] for name in names if (layer := getattr(module, name, None)) in layers
            ]
            if len(group) == len(names) and len({layer.kind for layer in group}) == 1:
                groups.append(group)
    grouped = {layer.module for layer in chain(*groups)}
    return groups + [[layer] for layer in layers.values() if layer.module not in grouped]
