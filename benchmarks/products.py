"""Matrix products of SmolLM2-135M in bfloat16 on this processor: torch's own, widened to float32,
and packed.

    python -m benchmarks.products [--threads 2] [--repeats 20]

`widened` is what training does where the processor has no products in bfloat16, `packed` what
sampling does with weights laid out beforehand; `float32` is the plain product in that format.
Milliseconds are the least of the repeats, of the wall clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

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
"""Rows, and what a weight reads and makes."""


def least_ms(product: Callable[[], object], repeats: int) -> float:
    """The least of several times, after one that is not counted."""
    product()
    took = []
    for _ in range(repeats):
        before = time.perf_counter()
        product()
        took.append(time.perf_counter() - before)
    return 1e3 * min(took)


@torch.no_grad()
def plain(dtype: torch.dtype, repeats: int) -> list[float]:
    """A product of each size as torch computes it now."""
    found = []
    for rows, reads, makes in SIZES.values():
        states, weight = (
            torch.randn(rows, reads, dtype=dtype),
            torch.randn(makes, reads, dtype=dtype),
        )
        found.append(least_ms(lambda states=states, weight=weight: linear(states, weight), repeats))
    return found


@torch.no_grad()
def packed(repeats: int) -> list[float]:
    """A product of each size with a weight that was laid out before."""
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
    rows = zip(SIZES, zip(*columns.values(), strict=True), strict=True)
    print(page.machine())
    print(
        page.table(
            ["ms", *columns], [[name, *(f"{ms:.2f}" for ms in found)] for name, found in rows]
        )
    )


if __name__ == "__main__":
    main()
