"""The part of the weights that a rank sends by itself, so that nobody has to gather them.

FSDP cuts a tensor into blocks of rows, one a rank: a range of its numbers, flattened. What is not
cut, or otherwise, or merged with adapters, is gathered, and the first rank sends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

# torch has no public function for the place of a shard within its tensor.
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from rl_core.train.trained import Trained
from rl_core.train.weights.buckets import (
    Named,
    gathered,
    sends_merged,
    sent_values,
    sent_weights,
)
from schemas.sections.rollout import SyncMode


@dataclass(frozen=True)
class Part:
    """A range of numbers of one tensor, flattened."""

    name: str
    first: int
    """Place of its first number in the tensor."""
    numbers_N: Tensor
    shape: tuple[int, ...]
    """Shape of the whole tensor."""


def own_parts(backend: Trained, mode: SyncMode, *, averaged: bool) -> Iterator[Part]:
    """Yield the rows that this rank holds of the weights that change in training; together the
    ranks have each row once. Nothing is gathered. Args: as of `sent_weights`."""
    if sends_merged(backend, mode):
        return
    for name, value in sent_values(backend, averaged=averaged).items():
        held = value.detach().to(backend.device)
        if is_cut_by_rows(held):
            first, numbers_N = _rows(held)
            if len(numbers_N):
                yield Part(name, first, numbers_N, tuple(held.shape))


def other_weights(
    backend: Trained, mode: SyncMode, dtype: torch.dtype, *, averaged: bool
) -> Iterator[Named]:
    """Yield the weights of which `own_parts` has nothing, gathered on every rank. Collective:
    exhaust it on all ranks. Args: as of `sent_weights`."""
    if sends_merged(backend, mode):
        return sent_weights(backend, mode, dtype, averaged=averaged)
    values = sent_values(backend, averaged=averaged)
    others = [(name, value) for name, value in values.items() if not is_cut_by_rows(value)]
    return ((name, gathered(backend, value)) for name, value in others)


def is_cut_by_rows(held: Tensor) -> bool:
    """Return True if ranks hold blocks of rows of a tensor, or all of them, and nothing cuts it
    otherwise."""
    if not isinstance(held, DTensor):
        return False
    sizes = held.device_mesh.shape
    cuts = [
        placement
        for placement, size in zip(held.placements, sizes, strict=True)
        if size > 1 and not isinstance(placement, Replicate)
    ]
    # Of several cuts of the same rows, the order of blocks is not that of ranks.
    return not cuts or cuts == [Shard(0)]


def _rows(held: Tensor) -> tuple[int, Tensor]:
    """Return the place of this rank's rows in a tensor and their numbers, none where another rank
    has the same."""
    assert isinstance(held, DTensor)
    mesh, placements = held.device_mesh, held.placements
    local = held.to_local()
    _, offsets = compute_local_shape_and_global_offset(held.shape, mesh, placements)
    place = mesh.get_coordinate()
    assert place is not None  # the rank holds a part
    for at, placement in zip(place, placements, strict=True):
        if at and isinstance(placement, Replicate):
            return 0, local.new_empty(0)
    return offsets[0] * held.shape[1:].numel(), local.reshape(-1)
