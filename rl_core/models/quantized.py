"""Linear layers whose frozen weights are stored in 4 bits (QLoRA, arXiv 2305.14314).

A weight is rounded to the 16 values of NormalFloat-4, 64 neighbours to a float32 scale, by
bitsandbytes: 4.5 bits a weight. Each product unpacks it again, so the model is smaller, and no
product is faster. The policy of such a run is the rounded model: it samples, trains, and is
exported as such, with its adapters merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rl_core.errors import ModelError
from rl_core.models.policy import Policy

BLOCK = 64
"""Number of neighbours that share a scale."""
FORMAT = "nf4"


class QuantizedLinear(nn.Linear):
    """A linear layer that holds its weight in 4 bits, outside of its parameters."""

    packed: Tensor
    """Two weights a byte."""
    scales: Tensor
    """Scale of each block."""
    unpacked: Tensor | None = None
    """The weight as a matrix, while it is kept; see `unpacked_weights`."""

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The rounded weight [O, I], in float32 unless it is kept in another format."""
        return self.unpack(torch.float32) if self.unpacked is None else self.unpacked

    @weight.setter
    def weight(self, value: Tensor) -> None:  # type: ignore[override]
        raise AttributeError("the weight of a quantized layer is not set; it is made from another")

    def unpack(self, dtype: torch.dtype) -> Tensor:
        """Return the rounded weight [O, I]."""
        # A block to a row: on a CPU bitsandbytes 0.50 reads rows wrongly that are no multiple of a
        # block.
        rows = [len(self.scales), BLOCK]
        blocks = torch.ops.bitsandbytes.dequantize_4bit(
            self.packed, self.scales, BLOCK, FORMAT, rows, dtype
        )
        return blocks.view(self.out_features, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        """Map the states [..., I] to [..., O]."""
        bias = None if self.bias is None else self.bias.to(input.dtype)
        kept = self.unpacked
        weight = self.unpack(input.dtype) if kept is None else kept.to(input.dtype)
        return nn.functional.linear(input, weight, bias)


def quantize(policy: Policy, form: str | None) -> None:
    """Round and pack the linear layers inside a policy's blocks, in place.

    Args: form: `nf4`, or None to leave them as they are. Raises: ModelError when there is none that
    can be packed.
    """
    if form is None:
        return
    blocks = [one for one in policy.modules() if type(one).__name__ in policy.block_classes]
    found: list[tuple[nn.Module, str, nn.Linear]] = []
    for block in blocks:
        for module in block.modules():
            for name, layer in module.named_children():
                if type(layer) is nn.Linear and layer.weight.numel() % BLOCK == 0:
                    found.append((module, name, layer))
    if not found:
        raise ModelError(
            f"model.quantize: no block of {type(policy.model).__name__} has a plain linear layer; "
            "leave it out"
        )
    for module, name, layer in found:
        setattr(module, name, _packed(layer))


def is_quantized(policy: nn.Module) -> bool:
    """Return True if a policy has packed layers."""
    return any(isinstance(module, QuantizedLinear) for module in policy.modules())


def unpack(policy: Policy) -> None:
    """Put plain linear layers with the rounded weights in place of the packed ones."""
    for module in list(policy.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, QuantizedLinear):
                plain = nn.Linear(
                    layer.in_features, layer.out_features, layer.bias is not None, device="meta"
                )
                plain.weight = nn.Parameter(layer.weight.clone())
                plain.bias = layer.bias
                setattr(module, name, plain)


@contextmanager
def unpacked_weights(policy: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Keep the weights of packed layers as matrices during the block, for many small products."""
    layers = [layer for layer in policy.modules() if isinstance(layer, QuantizedLinear)]
    try:
        for layer in layers:
            layer.unpacked = layer.unpack(dtype)
        yield
    finally:
        for layer in layers:
            layer.unpacked = None


def _packed(layer: nn.Linear) -> QuantizedLinear:
    # Registers the operators.
    import bitsandbytes  # noqa: F401  # pyright: ignore[reportUnusedImport]

    packed = QuantizedLinear.__new__(QuantizedLinear)
    nn.Module.__init__(packed)
    packed.in_features, packed.out_features = layer.in_features, layer.out_features
    packed.register_parameter("bias", layer.bias)
    weights, scales = torch.ops.bitsandbytes.quantize_4bit(
        layer.weight.detach(), BLOCK, FORMAT, torch.uint8
    )
    packed.register_buffer("packed", weights, persistent=False)
    packed.register_buffer("scales", scales, persistent=False)
    return packed
