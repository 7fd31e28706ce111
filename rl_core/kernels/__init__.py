"""Fast CPU implementations of operations from torch, transformers and peft.

Each has a slower standard counterpart that gives the same result up to rounding. `accelerate` puts
fast modules into a loaded model, and its result removes them. This file lists the public names; no
other package imports the files behind it. Names are resolved on first use, so importing this
package stays light.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_core.kernels.adapted_linear import AdaptedLinear
    from rl_core.kernels.allocator import freed_memory_given_back, keep_freed_memory
    from rl_core.kernels.autograd_context import AutogradContext
    from rl_core.kernels.bfloat16_attention import attend_in_bfloat16, attends_in_bfloat16
    from rl_core.kernels.float32_matmul import (
        has_bfloat16_products,
        multiplied_as_bfloat16,
        multiplies_in_bfloat16,
        multiplies_in_tiles,
        product_in_float32,
        widen_products,
    )
    from rl_core.kernels.gated_mlp import GatedMLP
    from rl_core.kernels.idle_threads import spare_busy_cores
    from rl_core.kernels.packed_products import Packed, packed_weights
    from rl_core.kernels.quick_modules import accelerate
    from rl_core.kernels.ragged_rows import Rectangle, Rectangles, Row, lay_out_rows
    from rl_core.kernels.replace import Replaced
    from rl_core.kernels.rms_norm import RMSNorm

__all__ = [
    "AdaptedLinear",
    "AutogradContext",
    "GatedMLP",
    "Packed",
    "RMSNorm",
    "Rectangle",
    "Rectangles",
    "Replaced",
    "Row",
    "accelerate",
    "attend_in_bfloat16",
    "attends_in_bfloat16",
    "freed_memory_given_back",
    "has_bfloat16_products",
    "keep_freed_memory",
    "lay_out_rows",
    "multiplied_as_bfloat16",
    "multiplies_in_bfloat16",
    "multiplies_in_tiles",
    "packed_weights",
    "product_in_float32",
    "spare_busy_cores",
    "widen_products",
]

_HOMES = {
    "spare_busy_cores": "rl_core.kernels.idle_threads",
    "AdaptedLinear": "rl_core.kernels.adapted_linear",
    "AutogradContext": "rl_core.kernels.autograd_context",
    "GatedMLP": "rl_core.kernels.gated_mlp",
    "Packed": "rl_core.kernels.packed_products",
    "RMSNorm": "rl_core.kernels.rms_norm",
    "Rectangle": "rl_core.kernels.ragged_rows",
    "Rectangles": "rl_core.kernels.ragged_rows",
    "Replaced": "rl_core.kernels.replace",
    "Row": "rl_core.kernels.ragged_rows",
    "accelerate": "rl_core.kernels.quick_modules",
    "attend_in_bfloat16": "rl_core.kernels.bfloat16_attention",
    "attends_in_bfloat16": "rl_core.kernels.bfloat16_attention",
    "freed_memory_given_back": "rl_core.kernels.allocator",
    "has_bfloat16_products": "rl_core.kernels.float32_matmul",
    "keep_freed_memory": "rl_core.kernels.allocator",
    "lay_out_rows": "rl_core.kernels.ragged_rows",
    "multiplied_as_bfloat16": "rl_core.kernels.float32_matmul",
    "multiplies_in_bfloat16": "rl_core.kernels.float32_matmul",
    "multiplies_in_tiles": "rl_core.kernels.float32_matmul",
    "packed_weights": "rl_core.kernels.packed_products",
    "product_in_float32": "rl_core.kernels.float32_matmul",
    "widen_products": "rl_core.kernels.float32_matmul",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
