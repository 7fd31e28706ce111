"""Checksum by which two processes verify that they hold the same tensors.

Light enough for an interpreter that has torch and little else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.errors import WeightMismatch

CHUNK = 2**22
"""Number of values that are widened at once for a checksum."""
NUM_NAMED = 3
"""Number of tensors that an error lists by name."""


@dataclass(frozen=True)
class Checksum:
    """Digest that equal tensors share."""

    shape: tuple[int, ...]
    value: int


def checksum(tensor: Tensor) -> Checksum:
    """Return the checksum of a tensor of floats."""
    return Checksum(tuple(tensor.shape), weighted_sum(tensor))


def weighted_sum(tensor: Tensor, first: int = 0) -> int:
    """Return the sum of (position + 1) x bits over numbers, modulo 2^64. Sums of a tensor's parts
    add up to its own. Args: first: position of the first number in the whole tensor.

    One changed number, or two different ones that swapped places, always change it. It is exact on
    every device, as integers sum to the same in any order, and a GPU computes it at the speed of
    its memory.
    """
    flat = tensor.detach().reshape(-1)
    bits_N = flat.view({2: torch.int16, 4: torch.int32}[flat.element_size()])
    total = 0
    for start in range(0, len(bits_N), CHUNK):
        part = bits_N[start : start + CHUNK].long()
        begin = first + start + 1
        total += int((part * torch.arange(begin, begin + len(part), device=part.device)).sum())
    return total % 2**64


def check_same(expected: Mapping[str, Checksum], found: Mapping[str, Checksum], where: str) -> None:
    """Compare checksums.

    Raises: WeightMismatch naming the tensors that differ.
    """
    bad = [name for name, wanted in expected.items() if found.get(name) != wanted]
    if bad:
        first = bad[0]
        raise WeightMismatch(
            f"{where}: {len(bad)} of {len(expected)} tensors differ from the trainer's, first "
            f"{', '.join(bad[:NUM_NAMED])}; {first}: expected {expected[first]}, found "
            f"{found.get(first)}"
        )
