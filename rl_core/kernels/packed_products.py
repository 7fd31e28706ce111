"""Weights of linear layers, packed once for the processor's matrix products while they do not
change.

Otherwise oneDNN rearranges a weight matrix for every product, which costs more than the product
itself if there are few rows, as in decoding. Layers that read the same states become one product.
If the processor multiplies in bfloat16, the result of a layer without adapter is bit-identical in
that format; otherwise the copy is in float32, see `float32_matmul`.

LoRA adapters (arXiv 2106.09685) cost nothing in a float32 copy: it holds W + scaling * B A. In
bfloat16 that sum would lose what the adapter has learnt, so A's output is concatenated to the
states, and B to W: one product adds both up and rounds once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad

from rl_core.kernels.float32_matmul import product_dtype

FORMATS = (torch.bfloat16, torch.float32)
"""Formats for which oneDNN has packed products."""
TILE_ROW = 32
"""Number of bfloat16 values in one row of an AMX tile; an inner dimension that is a multiple of it
wastes none."""
READ_THE_SAME = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Attribute names, in transformers, of layers in one module that read the same states, in call
order."""


@contextmanager
def packed_weights(model: nn.Module, leave: nn.Module | None = None) -> Iterator[Packed]:
    """Within the block, let every plain linear layer of a model multiply by a packed copy of its
    weight, without gradients.

    Plain layers with one plain adapter are included. Weights must be unsharded and must not change.
    Nothing happens on devices other than CPUs with oneDNN. Args: leave: a layer that is left as it
    is. Yields: the products.
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
    """A module to pack: base(x), plus scaling * B(A(x)) if it has an adapter."""

    module: nn.Module
    base: nn.Linear
    adapter: tuple[nn.Linear, nn.Linear, float] | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """Properties that layers must have in common to become one product."""
        return (
            self.base.in_features,
            self.base.weight.dtype,
            self.base.bias is None,
            self.adapter is None,
        )


class Product:
    """One product for layers that read the same states; the first layer that is called computes it
    for all."""

    def __init__(self, layers: list[_Layer]) -> None:
        bases = [layer.base for layer in layers]
        adapters = [layer.adapter for layer in layers if layer.adapter is not None]
        self.kept = bases[0].weight.dtype
        self.computed = product_dtype(bases[0].weight)
        self.sizes = [base.out_features for base in bases]
        weights: list[Tensor] = [base.weight for base in bases]
        biases: list[Tensor] = [base.bias for base in bases if base.bias is not None]
        self.narrow: Tensor | None = None
        """Packed A of all adapters; None if there are none or they are merged into the weights."""
        if adapters and self.computed is torch.float32:
            weights = [_merged(layer) for layer in layers]
        elif adapters:
            downs = torch.cat([down.weight for down, _, _ in adapters])
            # The products with A are concatenated; each layer's B reads only its own part of them.
            ups = torch.block_diag(*(up.weight * scaling for _, up, scaling in adapters))
            short = -(downs.shape[1] + len(downs)) % TILE_ROW
            self.narrow = self._packed([pad(downs, (0, 0, 0, short))])
            weights = [torch.cat([torch.cat(weights), pad(ups, (0, short))], 1)]
        self.weight = self._packed(weights)
        self.bias = torch.cat(biases).to(self.computed) if biases else None
        self.held: tuple[Tensor | None, tuple[Tensor, ...]] = (None, ())
        """Last states, and each layer's output for them."""

    def part(self, index: int, states: Tensor) -> Tensor:
        """Return the output for the states of the group's layer with this index."""
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
        # Packing has no public name in torch; torch.compile uses these operators. They can go when
        # `nn.Linear` keeps a packed weight by itself.
        return torch.ops.mkldnn._reorder_linear_weight(whole.detach().to(self.computed), None)


Packed = dict[tuple[nn.Module, ...], Product]
"""Products by their layers, in call order."""


def _merged(layer: _Layer) -> Tensor:
    """Return the weight of an adapted layer with its adapter merged, in float32."""
    assert layer.adapter is not None
    down, up, scaling = layer.adapter
    return torch.addmm(
        layer.base.weight.float(), up.weight.float(), down.weight.float(), alpha=scaling
    )


def _linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # The operator that takes what `_reorder_linear_weight` packed; it goes with it.
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


def _can_pack() -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    )


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return True if a module only multiplies by an unsharded matrix on a CPU, in a packable
    format."""
    if (
        type(module) is not nn.Linear
        or "forward" in vars(module)
        or isinstance(module.weight, DTensor)
    ):
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype in FORMATS


def _layer(module: nn.Module) -> _Layer | None:
    """Return the module's parts for packing; None if it cannot be packed."""
    if _is_plain(module):
        return _Layer(module, module)
    if not hasattr(module, "lora_A") or "forward" in vars(module):
        return None
    from peft.tuners import lora

    from rl_core.kernels.adapted_linear import plain_parts

    parts = plain_parts(module) if isinstance(module, lora.Linear) else None
    if parts is None or parts.dropout is not None or not _is_plain(parts.base):
        return None
    return _Layer(module, parts.base, (parts.down_RI, parts.up_OR, parts.scaling))


def _groups(model: nn.Module, leave: nn.Module | None) -> list[list[_Layer]]:
    """Return all layers of a model that can be packed, grouped by the states that they read."""
    modules = [module for module in model.modules() if module is not leave]
    layers = {module: layer for module in modules if (layer := _layer(module)) is not None}
    for adapted in [layer for layer in layers.values() if layer.adapter is not None]:
        for inner in adapted.module.modules():
            if inner is not adapted.module:
                layers.pop(inner, None)
    groups: list[list[_Layer]] = []
    for module in model.modules():
        for names in READ_THE_SAME:
            group = []
            for name in names:
                if (layer := getattr(module, name, None)) in layers:
                    group.append(layers[layer])
            if len(group) == len(names) and len({layer.kind for layer in group}) == 1:
                groups.append(group)
    grouped = {layer.module for layer in chain(*groups)}
    return groups + [[layer] for layer in layers.values() if layer.module not in grouped]
