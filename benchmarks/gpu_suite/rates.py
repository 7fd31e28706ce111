"""Rates that limit a step on a device, measured, and the bytes that a step has to read."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu_suite.shapes import Case

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 10


def bytes_per_s(device: str) -> float:
    """Return the bytes that a copy within the device's memory reads and writes in a second."""
    source = torch.ones(2**24 if device == "cpu" else 2**31, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _median_s(lambda: target.copy_(source))


def operations_per_s(device: str) -> float:
    """Return the floating-point operations per second of one large product in bfloat16."""
    size = 512 if device == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    return 2 * size**3 / _median_s(lambda: left @ right)


def bytes_of_decoding(config: Any, case: Case) -> float:
    """Return the fewest bytes that a token's step reads on average: all weights in bfloat16, and
    each row's keys and values."""
    heads = config.num_attention_heads + config.num_key_value_heads
    block = 2 * config.hidden_size * config.head_dim * heads
    block += 3 * config.hidden_size * config.intermediate_size
    weights = config.num_hidden_layers * block + config.vocab_size * config.hidden_size
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 2.0 * (weights + case.num_rows * (case.prompt + case.reply / 2) * per_token)


def settle(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def _median_s(act: Callable[[], object]) -> float:
    took = []
    for _ in range(3 + REPEATS):
        settle("cuda" if torch.cuda.is_initialized() else "cpu")
        start = time.perf_counter()
        act()
        settle("cuda" if torch.cuda.is_initialized() else "cpu")
        took.append(time.perf_counter() - start)
    return statistics.median(took[3:])
