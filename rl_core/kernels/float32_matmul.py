"""Matrix products in bfloat16 on a CPU without instructions for them: computed in float32, and
rounded once.

torch computes them there several times as slowly as products in float32. Only the products change:
what is kept and passed on stays in bfloat16.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PRODUCTS = ("mm", "mm.out", "addmm", "bmm", "baddbmm")
"""Those that layers, attention and their gradients come down to."""
_installed: list[Any] = []
"""torch forgets what it was told once nothing holds on to it."""


def has_bfloat16_products() -> bool:
    """Whether this processor multiplies matrices in bfloat16 by instructions of its own."""
    import torch

    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def multiplies_in_bfloat16(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this format is bfloat16, and a processor here multiplies in it (AVX-512 BF16, AMX)
    without detour."""
    import torch

    return (
        device.type == "cpu" and dtype is torch.bfloat16 and torch.cpu._is_avx512_bf16_supported()
    )


def multiplies_in_tiles(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products in this format run in the tiles of a processor (AMX), which small ones do
    not fill."""
    import torch

    return device.type == "cpu" and dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported()


def product_dtype(tensor: Tensor) -> torch.dtype:
    """The format in which products with such a tensor are quickest: its own, or float32 in the
    place of bfloat16."""
    import torch

    is_slow = tensor.is_cpu and tensor.dtype is torch.bfloat16 and not has_bfloat16_products()
    return torch.float32 if is_slow else tensor.dtype


def product_in_float32(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """left @ right, added up and kept in float32 (float64 stays), whatever the format of the
    factors.

    Factors in bfloat16 are multiplied by the instructions for them, which is as quick as rounding
    the result would be. On a CPU they may come in float32 if their values fit bfloat16: see
    `multiplied_as_bfloat16`. Args: out: [M, N].
    """
    import torch

    if left.dtype in (torch.float32, torch.float64):
        return torch.mm(left, right, out=out)
    if left.is_cuda:
        if out is None:
            return torch.mm(left, right, out_dtype=torch.float32)
        return torch.mm(left, right, out_dtype=torch.float32, out=out)
    with multiplied_as_bfloat16(left.dtype):
        return torch.mm(left.float(), right.float(), out=out)


@contextmanager
def multiplied_as_bfloat16(dtype: torch.dtype) -> Iterator[None]:
    """For the block, a CPU that multiplies in bfloat16 rounds factors in float32 to it, if `dtype`
    is that.

    Sums stay in float32. Factors that were bfloat16 before lose nothing.
    """
    import torch

    if dtype is not torch.bfloat16 or not has_bfloat16_products():
        yield
        return
    # It cannot be asked of a single product, and torch's older switch for it slows thin ones.
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def widen_products() -> bool:
    """Compute in float32 what this process multiplies in bfloat16, from now on. Returns: whether
    that was called for.

    How much it saves: `make bench-products`.
    """
    if has_bfloat16_products():
        return False
    import torch

    if not _installed:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for name in PRODUCTS:
                library.impl(name, _widened(name), "CPU", with_keyset=True)
        _installed.append(library)
    return True


def _widened(name: str) -> Callable[..., Any]:
    import torch

    own = torch.library.get_kernel(f"aten::{name}", "CPU")

    def product(keys: Any, *tensors: Any, out: Any = None, **factors: Any) -> Any:
        if tensors[0].dtype is not torch.bfloat16:
            given = {} if out is None else {"out": out}
            return own.call_boxed(keys, *tensors, **factors, **given)
        wide = [tensor.float() for tensor in tensors]
        if out is None:
            return own.call_boxed(keys, *wide, **factors).bfloat16()
        return out.copy_(
            own.call_boxed(
                keys, *wide, **factors, out=out.new_empty(out.shape, dtype=torch.float32)
            )
        )

    return product
