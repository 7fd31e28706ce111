"""The weights of linear layers laid out once for a processor's products, while nothing changes them.

oneDNN otherwise rearranges a weight matrix for every product with it, which costs more than the product itself where
there are few rows, as in decoding. In bfloat16 the result stays the same, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

FORMATS = (torch.bfloat16, torch.float32)
"""That oneDNN has packed products for."""


@contextmanager
def packed_weights(model: nn.Module) -> Iterator[None]:
    """For the block, every plain linear layer of a model multiplies with a packed copy of its weight, without gradient.

    Weights must be whole and must not change. On other devices than CPUs with oneDNN nothing happens.
    """
    layers: list[Any] = [module for module in model.modules() if _is_plain(module)] if _can_pack() else []
    try:
        for layer in layers:
            layer.forward = partial(_product, _packed(layer.weight), layer.bias)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _can_pack() -> bool:
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _is_plain(module: Any) -> bool:
    """Whether a module is no more than a product with a matrix that lies here as a whole."""
    if type(module) is not nn.Linear or "forward" in vars(module) or isinstance(module.weight, DTensor):
        return False
    return module.weight.device.type == "cpu" and module.weight.dtype in FORMATS


def _packed(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)


def _product(packed: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(states, packed, bias, "none", [], "")
