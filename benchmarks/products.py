"""Matrix products of SmolLM2-135M in bfloat16 on this processor: torch's own, widened to float32,
and packed; attention and convolutions as well.

    python -m benchmarks.products [--threads 2] [--repeats 20]

Training uses `widened` if the processor has no bfloat16 products; sampling uses `packed`, with
weights rearranged beforehand; `float32` is the plain product in that format. Milliseconds are the
minimum wall-clock time of the repeats.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import zip_longest

import torch
from torch import nn
from torch.nn.functional import linear

from benchmarks import page
from rl_core.kernels import packed_weights, widen_products

SIZES = {
    "gate and up, training": (1112, 576, 3072),
    "gate and up, sampling": (64, 576, 3072),
    "head": (64, 576, 49152),
}
"""Number of rows, input features and output features of layers, which can be packed."""
Product = Callable[[], object]


def _layer(size: tuple[int, int, int], dtype: torch.dtype) -> Product:
    rows, reads, makes = size
    states, weight = torch.randn(rows, reads, dtype=dtype), torch.randn(makes, reads, dtype=dtype)
    return lambda: linear(states, weight)


def _sum_in_room(dtype: torch.dtype) -> Product:
    room, weight = torch.randn(1112, 576, dtype=dtype), torch.randn(1536, 576, dtype=dtype)
    states = torch.randn(1112, 1536, dtype=dtype)
    return lambda: torch.addmm(room, states, weight, out=room)


def _attention(dtype: torch.dtype, *, backward: bool) -> Product:
    states, scale = [torch.randn(8, 9, 128, 64, dtype=dtype) for _ in range(3)], 0.125
    operators = torch.ops.aten
    seen = operators._scaled_dot_product_flash_attention_for_cpu
    slope = operators._scaled_dot_product_flash_attention_for_cpu_backward
    made, log_sum_exp = seen(*states, 0.0, True, scale=scale)
    if not backward:
        return lambda: seen(*states, 0.0, True, scale=scale)
    return lambda: slope(made, *states, made, log_sum_exp, 0.0, True, scale=scale)


def _convolution(dtype: torch.dtype) -> Product:
    layer = nn.Conv2d(64, 64, 3, padding=1, dtype=dtype)
    pictures = torch.randn(4, 64, 32, 32, dtype=dtype)

    def both_passes() -> None:
        with torch.enable_grad():
            layer(pictures).sum().backward()

    return both_passes


CASES: dict[str, Callable[[torch.dtype], Product]] = {
    **{name: partial(_layer, size) for name, size in SIZES.items()},
    "a layer's gradient added to another": _sum_in_room,
    "attention, 8 rows of 128": partial(_attention, backward=False),
    "its backward pass": partial(_attention, backward=True),
    "convolution, both passes": _convolution,
}


def least_ms(product: Product, repeats: int) -> float:
    """Return the minimum milliseconds of several runs, after one that is not counted."""
    product()
    took = []
    for _ in range(repeats):
        before = time.perf_counter()
        product()
        took.append(time.perf_counter() - before)
    return 1e3 * min(took)


@torch.no_grad()
def plain(dtype: torch.dtype, repeats: int) -> list[float]:
    """Time each case as torch computes it."""
    return [least_ms(case(dtype), repeats) for case in CASES.values()]


@torch.no_grad()
def packed(repeats: int) -> list[float]:
    """Time a product of each size with a packed weight."""
    found = []
    for rows, reads, makes in SIZES.values():
        layer, states = (
            nn.Linear(reads, makes, bias=False).bfloat16(),
            torch.randn(rows, reads).bfloat16(),
        )
        with packed_weights(layer):
            found.append(least_ms(lambda layer=layer, states=states: layer(states), repeats))
    return found


def main() -> None:
    """Print a row per size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    columns = {
        "bfloat16": plain(torch.bfloat16, args.repeats),
        "float32": plain(torch.float32, args.repeats),
    }
    if widen_products():
        columns["widened"] = plain(torch.bfloat16, args.repeats)
    columns["packed"] = packed(args.repeats)
    rows: list[list[str]] = []
    for name, *found in zip_longest(CASES, *columns.values()):
        rows.append([str(name), *("" if ms is None else f"{ms:.2f}" for ms in found)])
    print(page.machine())
    print(page.table(["ms", *columns], rows))


if __name__ == "__main__":
    main()
