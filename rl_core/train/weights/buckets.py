"""Weights sent to a rollout engine: their selection, and their packing into buckets.

Names are those of the engine's parameters. Tensors are gathered one after the other, so that no
rank ever holds the whole model in addition to its shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rl_core.errors import WeightMismatch
from rl_core.models.adapters.dithering import dithered
from rl_core.models.adapters.lora import base_name, is_adapter, is_averaged
from rl_core.models.adapters.merging import adapted_weights, places, unties
from rl_core.train.sharding import fsdp_wrap
from rl_core.train.trained import Trained
from rl_core.train.weights.changes import Changes, apply_changes, encode_changes
from schemas.sections.rollout import SyncMode

Named = tuple[str, Tensor]


@dataclass(frozen=True)
class WeightVersion:
    """Version of weights, by the number of changes since the workers started."""

    number: int
    averaged: bool = False
    """True for the moving average at that time instead of the weights themselves."""

    def __str__(self) -> str:
        if self.averaged:
            return f"{self.number} (average)"
        return str(self.number)


@dataclass(frozen=True)
class Piece:
    """A range of numbers of one tensor, flattened."""

    name: str
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


Pieces = tuple[Piece, ...] | tuple[Changes, ...]


@dataclass(frozen=True)
class Bucket:
    """Unit of weights that is sent at once."""

    pieces: Pieces
    values_N: Tensor
    """Numbers of the pieces, or bytes of the changes, end to end."""


def pack(tensors: Iterable[Named], bucket_bytes: int) -> Iterator[Bucket]:
    """Pack tensors of one format, in order, in buckets of `bucket_bytes` but the last; a large
    tensor spans several."""
    return pack_ranges(((name, 0, tensor) for name, tensor in tensors), bucket_bytes)


def pack_ranges(ranges: Iterable[tuple[str, int, Tensor]], bucket_bytes: int) -> Iterator[Bucket]:
    """Pack ranges of tensors as `pack` does whole ones. Args: ranges: name of the tensor, place of
    the first number in it, and the numbers."""
    pieces: list[Piece] = []
    parts: list[Tensor] = []
    used = 0
    for name, first, tensor in ranges:
        flat = tensor.detach().reshape(-1)
        capacity = max(1, bucket_bytes // flat.element_size())
        start = 0
        while start < len(flat):
            stop = min(len(flat), start + capacity - used)
            pieces.append(Piece(name, first + start, first + stop))
            parts.append(flat[start:stop])
            used, start = used + stop - start, stop
            if used == capacity:
                yield Bucket(tuple(pieces), torch.cat(parts))
                pieces, parts, used = [], [], 0
    if parts:
        yield Bucket(tuple(pieces), torch.cat(parts))


@torch.no_grad()
def unpack(bucket: Bucket, parameters: Mapping[str, Tensor]) -> None:
    """Write a bucket into parameters, in place and in their format. Raises: WeightMismatch on an
    unknown one."""
    for piece, values in zip(
        bucket.pieces, bucket.values_N.split(list(map(len, bucket.pieces))), strict=True
    ):
        target = parameters.get(piece.name)
        if target is None or piece.stop > target.numel():
            if target is None:
                size = "no such parameter"
            else:
                size = f"a parameter of {target.numel()} numbers"
            raise WeightMismatch(
                f"{piece.name}[{piece.start}:{piece.stop}] was sent, but the engine has {size}"
            )
        part = target.view(-1)[piece.start : piece.stop]
        if isinstance(piece, Changes):
            apply_changes(piece, values, part)
        else:
            part.copy_(values)


class SentWeights:
    """The weights as an engine holds them, on the host of the rank that sends: one number of the
    wire's format for each of the model's."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def forget(self) -> None:
        """Send everything the next time: the engine may hold anything."""
        self._held.clear()

    def changed(self, weights: Iterable[Named], bucket_bytes: int) -> Iterator[Bucket]:
        """Yield buckets of about `bucket_bytes` with what differs from the weights of the last
        call."""
        described: list[Changes] = []
        parts: list[Tensor] = []
        size = 0
        for name, weight in weights:
            new = weight.detach().reshape(-1).cpu()
            held = self._held.get(name)
            capacity = max(1, bucket_bytes // new.element_size())
            for start in range(0, len(new), capacity):
                stop = min(len(new), start + capacity)
                before = None if held is None else held[start:stop]
                found = encode_changes(name, start, new[start:stop], before)
                if found is None:
                    continue
                described.append(found[0])
                parts.append(found[1])
                size += len(found[0])
                if size >= bucket_bytes:
                    yield Bucket(tuple(described), torch.cat(parts))
                    described, parts, size = [], [], 0
            if held is None:
                self._held[name] = new.clone()
            else:
                held.copy_(new)
        if parts:
            yield Bucket(tuple(described), torch.cat(parts))


def sent_weights(
    backend: Trained, mode: SyncMode, dtype: torch.dtype, *, averaged: bool
) -> Iterator[Named]:
    """Yield the weights that change in training, gathered on every rank. Collective: exhaust it on
    all ranks.

    Args: dtype: format that the engine computes in, in which merged weights come. averaged: the
    moving average in place of the weights. Raises: ModelError when adapters cannot be merged.
    """
    if sends_merged(backend, mode):
        return _merged(backend, _values(backend, averaged=averaged), dtype)
    values = sent_values(backend, averaged=averaged)
    return ((name, gathered(backend, value)) for name, value in values.items())


def sends_merged(backend: Trained, mode: SyncMode) -> bool:
    """Return True if adapters are sent merged with what they adapt."""
    return mode is SyncMode.FULL and backend.lora_cfg is not None


def sent_values(backend: Trained, *, averaged: bool) -> dict[str, Tensor]:
    """Return the weights that change in training by name, as this rank holds them."""
    values = _values(backend, averaged=averaged)
    return {name: values[name] for name in backend.trainable}


def kept_weights(backend: Trained, mode: SyncMode) -> Iterator[Named]:
    """Yield the weights that the engine loaded by itself and never receives. Collective, like
    `sent_weights`."""
    if sends_merged(backend, mode):
        return iter(())
    kept = {}
    for name, value in _values(backend, averaged=False).items():
        if name not in backend.trainable:
            kept[name] = value
    return ((name, gathered(backend, value)) for name, value in kept.items())


def _values(backend: Trained, *, averaged: bool) -> dict[str, Tensor]:
    """Return every parameter by name, as this rank holds it."""
    for unit in fsdp_wrap.units(backend.policy):
        unit.reshard()
    values: dict[str, Tensor] = {}
    for name, value in backend.policy.named_parameters():
        if not is_averaged(name):
            values[name] = value
    if averaged:
        assert backend.ema is not None
        values |= backend.ema.shadow
    return values


def gathered(backend: Trained, value: Tensor) -> Tensor:
    """Return a whole tensor. Collective."""
    moved = value.detach().to(backend.device)
    if isinstance(moved, DTensor):
        return moved.full_tensor()
    return moved


def _merged(backend: Trained, values: dict[str, Tensor], dtype: torch.dtype) -> Iterator[Named]:
    """Yield the model without adapters: each weight with its adapter's contribution.

    If an adapter belongs to a tied matrix, the engine's model is untied, and each place gets its
    own weights.
    """
    adapted = adapted_weights(backend.policy)
    untied = unties(backend.policy, adapted)
    for first, names in places(backend.policy).items():
        if is_adapter(first):
            continue
        full = gathered(backend, values[first])
        for name in names if untied else names[:1]:
            here = adapted.get(name)
            if here is None:
                yield base_name(name), full
            else:
                merged = full.float() + here.delta(lambda factor: gathered(backend, values[factor]))
                yield base_name(name), dithered(merged, dtype, base_name(name))
