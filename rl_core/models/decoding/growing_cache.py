"""KV cache of a decoding batch in memory that has room for further tokens.

transformers' own cache is copied as a whole for every token. Here the prompts' entries are laid out
once, a row per reply, with room behind them; a token's keys and values are written into it, and
finished rows are removed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROOM = 64
"""Number of tokens by which the memory grows."""


class FilledLayer(Protocol):
    """A `DynamicLayer` after the prefill."""

    keys: Tensor
    values: Tensor


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, [R, heads, length, D], as views into larger memory.

    Args: filled: a layer after the prefill, [P, heads, length, D]. counts_P: number of replies to
    each prompt. from_start: True if rows begin with their prompt; otherwise they are empty.
    """

    def __init__(
        self, filled: DynamicLayer | FilledLayer, counts_P: Tensor, *, from_start: bool = True
    ) -> None:
        super().__init__()
        assert filled.keys is not None and filled.values is not None
        self.dtype, self.device, self.is_initialized = filled.keys.dtype, filled.keys.device, True
        length = filled.keys.shape[2] if from_start else 0
        self._rooms = [_roomy(one[:, :, :length], counts_P) for one in (filled.keys, filled.values)]
        self._show(length)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append tokens. Returns: all keys and values of the rows."""
        assert self.keys is not None
        start = self.keys.shape[2]
        stop = start + key_states.shape[2]
        if stop > self._rooms[0].shape[2]:
            self._rooms = [_roomy(room[:, :, :start]) for room in self._rooms]
        for room, states in zip(self._rooms, (key_states, value_states), strict=True):
            room[:, :, start:stop] = states
        return self._show(stop)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, ascending."""
        assert self.keys is not None
        length = self.keys.shape[2]
        for index, room in enumerate(self._rooms):
            kept = room[: len(indices)]
            kept[:, :, :length] = room[indices, :, :length]
            self._rooms[index] = kept
        self._show(length)

    def join(self, others: Sequence[GrowingLayer]) -> None:
        """Append the rows of other layers.

        Rows are aligned at their ends: shorter ones get zeros before them, which a mask hides.
        """
        layers = [self, *others]
        length = max(layer.length for layer in layers)
        rooms = []
        for index in range(len(self._rooms)):
            moved = [_moved(layer._rooms[index], layer.length, length) for layer in layers]
            rooms.append(torch.cat(moved))
        self._rooms = rooms
        self._show(length)

    def trim(self, start: int) -> None:
        """Forget the first positions of every row."""
        length = self.length - start
        for room in self._rooms:
            # The source is copied first, since it overlaps with where it goes.
            room[:, :, :length] = room[:, :, start : start + length].clone()
        self._show(length)

    @property
    def length(self) -> int:
        """Number of positions."""
        assert self.keys is not None
        return self.keys.shape[2]

    def _show(self, length: int) -> tuple[Tensor, Tensor]:
        self.keys, self.values = (room[:, :, :length] for room in self._rooms)
        return self.keys, self.values


def cache_argument(model: PreTrainedModel) -> str:
    """Return the argument name of a cache in a model's forward: `cache` since transformers 5.24,
    except for remote code."""
    if "cache" in signature(model.forward).parameters:
        return "cache"
    return "past_key_values"


def is_plain(cache: Cache) -> bool:
    """Return True if a token sees all of its row in every layer of a cache after the prefill (no
    sliding windows)."""
    return all(type(layer) is DynamicLayer and layer.keys is not None for layer in cache.layers)


def plain_layers(cache: Cache) -> list[FilledLayer]:
    """Return the layers, in place, of a cache that `is_plain`."""
    layers: Any = cache.layers
    return layers


def grow(cache: Cache, counts_P: Tensor) -> None:
    """Repeat a cache's rows after the prefill, and give its plain layers room.

    Others (sliding windows, states of convolutions and recurrences) stay as they are.
    """
    row_R = torch.arange(len(counts_P), device=counts_P.device).repeat_interleave(counts_P)
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.keys is not None:
            cache.layers[index] = GrowingLayer(layer, counts_P)
        else:
            take_rows(layer, row_R)


def take_rows(layer: Any, row_R: Tensor) -> None:
    """Replace the rows of a cache's layer by these of its own rows, in this order, with
    repetitions."""
    if isinstance(layer, GrowingLayer):
        layer.batch_select_indices(row_R)
    else:
        # Beam search uses this method, the only such one that every kind of layer has.
        layer.reorder_cache(row_R)


def _moved(room: Tensor, length: int, to: int) -> Tensor:
    """Return a copy of the first `length` positions that ends at `to`, with room behind."""
    moved = room.new_empty(len(room), room.shape[1], to + ROOM, room.shape[3])
    moved[:, :, : to - length] = 0
    moved[:, :, to - length : to] = room[:, :, :length]
    return moved


def _roomy(states: Tensor, counts: Tensor | None = None) -> Tensor:
    """Return a copy with room behind it, its rows repeated."""
    rows = len(states) if counts is None else int(counts.sum())
    room = states.new_empty(rows, states.shape[1], states.shape[2] + ROOM, states.shape[3])
    room[:, :, : states.shape[2]] = (
        states if counts is None else states.repeat_interleave(counts, 0)
    )
    return room
