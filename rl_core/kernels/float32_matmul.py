"""Matrix products and convolutions of bfloat16 tensors, and attention's backward pass, on CPUs
without bfloat16 instructions: computed in float32 and rounded once.

On such CPUs torch's own bfloat16 products take several times as long as float32 ones. Only the
products change: saved and returned tensors stay in bfloat16.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PRODUCTS = (
    *("mm", "mm.out", "bmm", "bmm.out"),
    *("addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_"),
    *("convolution", "convolution_backward"),
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)
"""Operators that compute the products of layers, attention, convolutions and their gradients, with
every way to say where the result goes. Of torch's attention only the backward pass is slow in
bfloat16."""
_installed: list[torch.library.Library] = []
"""Registered libraries; torch removes a registration when its library object is
garbage-collected."""


def has_bfloat16_products() -> bool:
    """Return True if this processor has instructions for bfloat16 matrix products that oneDNN uses.

    oneDNN also takes bfloat16 on x86 processors with AVX-512 alone (Skylake to Ice Lake), where it
    emulates the products: four times as slow as float32 ones, so those do not count.
    """
    import torch

    # torch has no public question for these; they can go when it has one.
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def multiplies_in_bfloat16(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if the format is bfloat16 and the CPU multiplies it natively (AVX-512 BF16 or
    AMX)."""
    import torch

    return (
        # torch.cpu says it under a private name alone; this can go when it has a public one.
        device.type == "cpu" and dtype is torch.bfloat16 and torch.cpu._is_avx512_bf16_supported()
    )


def multiplies_in_tiles(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if products in this format use the CPU's tiles (AMX), which small products do not
    fill."""
    import torch

    # As above: torch.cpu has no public name for it yet.
    return device.type == "cpu" and dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported()


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Return the fastest format for products with a tensor: its own, or float32 for bfloat16 on a
    CPU without bfloat16 instructions."""
    import torch

    is_slow = tensor.is_cpu and tensor.dtype is torch.bfloat16 and not has_bfloat16_products()
    return torch.float32 if is_slow else tensor.dtype


def product_in_float32(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return left @ right, accumulated and returned in float32 (float64 stays), for any format of
    the factors.

    bfloat16 factors use bfloat16 instructions, which costs no more than a product with a rounded
    result. On a CPU such factors may be stored in float32 if their values fit bfloat16: see
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
    """Within the block, round float32 factors to bfloat16 on CPUs that multiply it, if `dtype` is
    bfloat16.

    Sums stay in float32. Factors whose values fit bfloat16 lose nothing.
    """
    import torch

    if dtype is not torch.bfloat16 or not has_bfloat16_products():
        yield
        return
    # The precision cannot be set for a single product, and torch's older switch slows thin
    # products.
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def widen_products() -> bool:
    """Compute this process's bfloat16 `PRODUCTS` in float32 from now on. Returns: False if oneDNN
    has bfloat16 products for this processor, so that nothing changes.

    `make bench-products` measures the savings.
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

    given, made_new = (
        torch.library.get_kernel(f"aten::{one}", "CPU")
        for one in (name, name.removesuffix(".out").removesuffix("_"))
    )

    def product(keys: torch.DispatchKeySet, *values: Any, **named: Any) -> Any:
        if values[0].dtype is not torch.bfloat16:
            return given.call_boxed(keys, *values, **named)
        room = named.pop("out", None)
        wide = {key: _float(value) for key, value in named.items()}
        made = made_new.call_boxed(keys, *map(_float, values), **wide)
        if name.endswith("_"):
            # Not resized: a sum that is larger than its own room is an error.
            return values[0].copy_(made)
        if room is not None:
            return room.resize_(made.shape).copy_(made)
        if isinstance(made, torch.Tensor):
            return made.bfloat16()
        return tuple(None if one is None else one.bfloat16() for one in made)

    return product


def _float(value: Any) -> Any:
    """Return a bfloat16 tensor in float32, and everything else as it is."""
    import torch

    is_narrow = isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16
    return value.float() if is_narrow else value
