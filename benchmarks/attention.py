"""Causal attention in bfloat16 with SmolLM2's heads, forward and backward: torch's own, torch's in
float32, and ours.

    python -m benchmarks.attention [--threads 2] [--repeats 20] [--rows 16]

Training uses `ours` up to a length if the processor multiplies in bfloat16, and `float32` on other
processors. Milliseconds are the minimum wall-clock time of the repeats.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import page
from benchmarks.products import least_ms
from rl_core.kernels import attend_in_bfloat16

HEADS, KEY_HEADS, SIZE = 9, 3, 64
LENGTHS = (64, 107, 256, 512, 1024)
SCALE = SIZE**-0.5
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def narrow(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute torch's attention in bfloat16."""
    return scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=SCALE, enable_gqa=True
    )


def wide(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute torch's attention in float32, rounded to bfloat16."""
    return narrow(query.float(), key.float(), value.float()).bfloat16()


def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Compute this project's attention in bfloat16."""
    return attend_in_bfloat16(query, key, value, SCALE)


def forward_and_backward_ms(attend: Attend, rows: int, length: int, repeats: int) -> float:
    """Return the minimum time of a forward and a backward pass, in milliseconds."""
    heads = (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    query, key, value, grad = (
        torch.randn(rows, length, count, SIZE).bfloat16().transpose(1, 2) for count in heads
    )
    states = [state.requires_grad_() for state in (query, key, value)]
    return least_ms(lambda: torch.autograd.grad(attend(*states), states, grad), repeats)


def main() -> None:
    """Print a row per length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rows", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ways = {"bfloat16": narrow, "float32": wide, "ours": ours}
    times = {}
    for length in LENGTHS:
        times[length] = [
            forward_and_backward_ms(way, args.rows, length, args.repeats) for way in ways.values()
        ]
    print(page.machine())
    print(
        page.table(
            ["ms", *ways],
            [[str(length), *(f"{ms:.2f}" for ms in found)] for length, found in times.items()],
        )
    )


if __name__ == "__main__":
    main()
