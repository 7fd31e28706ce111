"""Batches by reference: the rows stay where they were made, and a consumer fetches those that it
was given.

A worker that answers with a DataProto puts its wide columns into its node's object store, one
object per column, and sends a description: columns, number of rows, metadata, and the narrow
columns themselves (rewards, counts). The driver joins descriptions, reads narrow columns without
fetching anything, fetches a wide one only when it is requested by name, and cuts without touching a
row: a shard is a list of (part, first row, end row).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rl_core.data_proto import DataProto, DataProtoError, MetaInfo
from rl_core.distributed.answers import answers_of
from rl_core.distributed.collect import join_meta, real_rows
from rl_core.distributed.layers import (
    Derived,
    Layer,
    cut,
    names_of,
    needed,
    only,
    put_over,
    side_by_side,
    tensor_names,
)
from rl_core.errors import WorkerDied
from rl_core.ranks.dispatch import MASK, fill_up, shard_rows

if TYPE_CHECKING:
    from ray import ObjectRef

NUM_ACTIONS = "num_actions"
"""Column that an answer with a mask gets where it is made: the number of actions of each row, which
the driver then knows without the mask."""
NARROW_BYTES = 64
"""Largest number of bytes per row at which a tensor column is sent with the description."""


@dataclass(frozen=True)
class Part:
    """Description of one rank's answer."""

    num_rows: int
    meta_info: MetaInfo
    narrow: DataProto
    """The narrow columns themselves."""
    wide: dict[str, ObjectRef[DataProto]]
    """Object reference of each wide column, tensors and objects alike: a DataProto with that one
    column."""
    tensor_keys: tuple[str, ...]
    object_keys: tuple[str, ...]

    @property
    def keys(self) -> set[str]:
        return {*self.tensor_keys, *self.object_keys}

    def only(self, keys: set[str]) -> Part:
        """Return the same rows with some of their columns, without fetching any."""
        return replace(
            self,
            narrow=self.narrow.select([key for key in self.narrow_keys if key in keys], []),
            wide={key: ref for key, ref in self.wide.items() if key in keys},
            tensor_keys=tuple(key for key in self.tensor_keys if key in keys),
            object_keys=tuple(key for key in self.object_keys if key in keys),
        )

    def rows(self, start: int, stop: int, keys: set[str]) -> DataProto:
        """Return some rows of the columns `keys`, all fetched at once."""
        wanted = [key for key in self.wide if key in keys]
        narrow = self.narrow.select([key for key in self.narrow_keys if key in keys], [])
        pieces = [
            *_get([self.wide[key] for key in wanted], wanted),
            *([narrow] if narrow.batch is not None else []),
        ]
        return side_by_side([piece[start:stop] for piece in pieces], self.meta_info)

    @property
    def narrow_keys(self) -> list[str]:
        return [key for key in self.tensor_keys if key not in self.wide]


def store(answer: object) -> Part:
    """Put the wide columns of an answer into the object store. Raises: TypeError when it is not a
    DataProto."""
    import ray

    if not isinstance(answer, DataProto):
        raise TypeError(
            f"a method with collect=JOIN answered with {type(answer).__name__}; it must be a "
            "DataProto"
        )
    if answer.batch is None:
        tensors = {}
    else:
        tensors = {str(key): tensor.cpu() for key, tensor in answer.batch.items()}
    if MASK in tensors and not tensors[MASK].is_nested:
        tensors[NUM_ACTIONS] = (tensors[MASK] != 0).sum(1)
    wide: dict[str, ObjectRef[DataProto]] = {}
    for key, tensor in tensors.items():
        if tensor.is_nested or tensor.numel() * tensor.element_size() > NARROW_BYTES * len(answer):
            wide[key] = ray.put(DataProto.from_dict({key: tensor}))
    for key, values in answer.non_tensor_batch.items():
        wide[key] = ray.put(DataProto(None, {key: values}))
    narrow = DataProto.from_dict(
        {key: tensor for key, tensor in tensors.items() if key not in wide}
    )
    return Part(
        len(answer), answer.meta_info, narrow, wide, tuple(tensors), tuple(answer.non_tensor_batch)
    )


class DataProtoRef:
    """Joined answer of several ranks, by reference. Reads like a DataProto; columns may be added or
    replaced."""

    def __init__(self, parts: Sequence[Part], num_rows: int | None = None) -> None:
        """Join the parts.

        Args: parts: in shard order. num_rows: rows that were cut for the answers, before any
        copies.
        Raises: DataProtoError when columns, metadata or row counts do not fit together.
        """
        for part in parts[1:]:
            if part.keys != parts[0].keys:
                raise DataProtoError(
                    f"answers differ in columns: {sorted(parts[0].keys)} and {sorted(part.keys)}"
                )
        self.parts = tuple(parts)
        self.meta_info = join_meta([part.meta_info for part in parts])
        self._num_rows = real_rows([part.num_rows for part in parts], num_rows)
        self._ends = list(accumulate(part.num_rows for part in parts))
        self.layers: tuple[Layer, ...] = ()
        """Columns that this process put over the rows, the last on top."""

    def __len__(self) -> int:
        return self._num_rows

    def __repr__(self) -> str:
        return (
            f"DataProtoRef({len(self)} rows in {len(self.parts)} parts, columns "
            f"{sorted(self.keys)})"
        )

    @property
    def keys(self) -> set[str]:
        """Names of all columns."""
        return self.parts[0].keys.union(*map(names_of, self.layers))

    @property
    def non_tensor_batch(self) -> Mapping[str, np.ndarray]:
        """The object columns; each is fetched on access."""
        return _ObjectColumns(self)

    def tensor(self, key: str) -> Tensor:
        """Return one tensor column, [rows, ...]; a narrow one without fetching. A derived one is
        computed here, from columns that are fetched. Raises: DataProtoError when there is none."""
        return self._tensor_below(len(self.layers), key)

    def _tensor_below(self, height: int, key: str) -> Tensor:
        """Return a tensor column as the first `height` layers leave it."""
        for place in reversed(range(height)):
            layer = self.layers[place]
            if isinstance(layer, Derived):
                if layer.key == key:
                    return layer.of(partial(self._tensor_below, place))
            elif key in tensor_names(layer):
                return layer.tensor(key)
        if key not in self.parts[0].tensor_keys:
            raise DataProtoError(
                f"no tensor {key!r} in the batch; it has {sorted(self.parts[0].tensor_keys)}"
            )
        return torch.cat([one.tensor(key) for one in self.column(key)])[: len(self)]

    def column(self, key: str) -> list[DataProto]:
        """Return one column of the parts without what this process put over them; those that are
        wide are fetched at once."""
        wide = [part.wide[key] for part in self.parts if key in part.wide]
        found = iter(_get(wide, key) if wide else [])
        columns = []
        for part in self.parts:
            columns.append(next(found) if key in part.wide else part.narrow.select([key], []))
        return columns

    def is_held(self, key: str) -> bool:
        """Return True if this process has the values of a column, and has not derived others."""
        layer = next((one for one in reversed(self.layers) if key in names_of(one)), None)
        return isinstance(layer, DataProto)

    def union(self, other: DataProto) -> DataProtoRef:
        """Add columns that this process holds, in place, and return self. Raises: DataProtoError on
        a shared name."""
        shared = self.keys & names_of(other)
        if shared or len(other) != len(self):
            raise DataProtoError(
                f"union: {len(other)} rows of {sorted(names_of(other))} do not go with {len(self)} "
                "rows" + (f"; shared columns: {sorted(shared)}" if shared else "")
            )
        return self._hold(other)

    def replace(self, other: DataProto) -> DataProtoRef:
        """Replace columns of the same name by columns of this process, or add them, and return
        self.

        Raises: DataProtoError when the numbers of rows differ.
        """
        if len(other) != len(self):
            raise DataProtoError(
                f"replace: {len(other)} rows of {sorted(names_of(other))} for {len(self)} rows"
            )
        return self._hold(other)

    def _hold(self, other: DataProto) -> DataProtoRef:
        lower, last = self.layers[:-1], self.layers[-1:]
        if last and isinstance(last[0], DataProto):
            self.layers = (*lower, side_by_side([last[0], other], {}))
        else:
            self.layers = (*self.layers, side_by_side([other], {}))
        return self

    def derive(self, column: Derived) -> DataProtoRef:
        """Add a column that consumers compute, or put it over one of the same name; return self.

        Raises: DataProtoError when a column that it needs is missing, or its numbers are those of
        other rows.
        """
        if missing := set(column.needs) - self.keys:
            raise DataProtoError(f"{column.key} is derived from missing columns {sorted(missing)}")
        if lengths := {len(one) for one in column.numbers} - {len(self)}:
            raise DataProtoError(
                f"{column.key} is derived from numbers of {sorted(lengths)} rows for {len(self)}"
            )
        self.layers = (*self.layers, column)
        return self

    def select(self, keys: Sequence[str]) -> DataProtoRef:
        """Return the same rows with some of their columns, for a consumer that needs no others;
        nothing is fetched. What a derived column is made of stays too.

        Raises: DataProtoError on an unknown column.
        """
        layers, below = needed(self.layers, self._known(keys))
        chosen = DataProtoRef([part.only(below) for part in self.parts])
        chosen._num_rows, chosen.layers = self._num_rows, layers
        return chosen

    def _known(self, keys: Sequence[str]) -> set[str]:
        wanted = set(keys)
        if wanted - self.keys:
            raise DataProtoError(
                f"no columns {sorted(wanted - self.keys)} in the batch; it has {sorted(self.keys)}"
            )
        return wanted

    def kept_here(self) -> DataProtoRef:
        """Return the same rows in the object store as this process's own, so that they stay when
        the workers end that made them."""
        parts = []
        for part in self.parts:
            columns = _get(list(part.wide.values()), list(part.wide))
            wide = {key: put(one).ref for key, one in zip(part.wide, columns, strict=True)}
            parts.append(replace(part, wide=wide))
        kept = DataProtoRef(parts)
        kept._num_rows, kept.layers = self._num_rows, self.layers
        return kept

    def spans(self, start: int, stop: int) -> list[tuple[Part, int, int]]:
        """Return where some rows lie: parts, with first and end row in each."""
        spans = []
        for place in range(bisect_right(self._ends, start), len(self.parts)):
            one, end = self.parts[place], self._ends[place]
            first = end - one.num_rows
            if first >= stop:
                break
            span = max(start - first, 0), min(stop - first, one.num_rows)
            if span[0] < span[1]:
                spans.append((one, *span))
        return spans

    def fetch(self, keys: Sequence[str] | None = None) -> DataProto:
        """Fetch the batch, or some of its columns, into this process."""
        return self.shard(1, 0, keys).fetch(with_padding_count=False)

    def shard(self, num_parts: int, part: int, keys: Sequence[str] | None = None) -> ShardRef:
        """Return one of `num_parts` shards of equal size, by reference; padded like
        `rl_core.ranks.dispatch.shard_of`."""
        if not len(self):
            raise DataProtoError(
                f"an empty batch cannot be cut for {num_parts} ranks; its columns have no rows"
            )
        wanted = self.keys if keys is None else self._known(keys)
        layers, below = needed(self.layers, wanted)
        start, stop, num_copies = shard_rows(len(self), num_parts, part)
        return ShardRef(
            tuple(self.spans(start, stop)),
            below,
            cut(layers, slice(start, stop)),
            wanted,
            self.meta_info,
            num_copies,
            -(-len(self) // num_parts),
        )


@dataclass(frozen=True)
class ShardRef:
    """Rows for one consumer; `fetch` brings these rows alone into its process."""

    spans: tuple[tuple[Part, int, int], ...]
    below: set[str]
    """Columns to fetch."""
    layers: tuple[Layer, ...]
    """Columns that the driver put over them, these rows only."""
    keys: set[str]
    """Columns that the consumer gets."""
    meta_info: MetaInfo
    num_copies: int
    num_rows: int
    """Number of rows, including copies."""

    def fetch(self, *, with_padding_count: bool = True) -> DataProto:
        """Fetch the rows, padded with copies. Raises: WorkerDied when the worker that made them is
        gone."""
        pieces = [part.rows(start, stop, self.below) for part, start, stop in self.spans]
        if len(pieces) == 1:
            rows = pieces[0]
        else:
            rows = DataProto.concat([_bare(piece) for piece in pieces])
        whole = only(put_over(side_by_side([rows], self.meta_info), self.layers), self.keys)
        if with_padding_count:
            return fill_up(whole, self.num_copies, self.num_rows)
        return whole


@dataclass(frozen=True)
class Reordered:
    """The rows of a batch in another order, by reference, as the argument of a call that cuts
    them."""

    batch: DataProtoRef
    blocks: tuple[tuple[int, int], ...]
    """First and end row of what comes after each other: all rows of the batch, once."""

    def __len__(self) -> int:
        return len(self.batch)

    @cached_property
    def order(self) -> np.ndarray:
        """Numbers of the rows of the batch, in the new order."""
        return np.concatenate([np.arange(*block) for block in self.blocks])

    def shard(self, num_parts: int, part: int) -> ShardRef:
        """Return one of `num_parts` shards of equal size, by reference. Raises: DataProtoError when
        the rows do not divide."""
        if len(self) % num_parts:
            raise DataProtoError(f"{len(self)} rows in an order do not divide into {num_parts}")
        size = len(self) // num_parts
        rows = self.order[part * size : (part + 1) * size]
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        spans: list[tuple[Part, int, int]] = []
        for block in np.split(rows, breaks):
            spans += self.batch.spans(int(block[0]), int(block[-1]) + 1)
        layers, below = needed(self.batch.layers, self.batch.keys)
        mine = cut(layers, rows)
        return ShardRef(tuple(spans), below, mine, self.batch.keys, self.batch.meta_info, 0, size)


@dataclass(frozen=True)
class Stored:
    """A batch that the driver put into the object store once, for all ranks."""

    ref: ObjectRef[DataProto]

    def fetch(self) -> DataProto:
        """Fetch the batch."""
        return _get([self.ref], "of a batch")[0]


def put(batch: DataProto) -> Stored:
    """Put a batch into the object store. It stays as long as this process and a reference to it."""
    import ray

    return Stored(ray.put(batch))


class _ObjectColumns(Mapping[str, np.ndarray]):
    def __init__(self, batch: DataProtoRef) -> None:
        self._batch = batch

    def __getitem__(self, key: str) -> np.ndarray:
        for layer in reversed(self._batch.layers):
            if isinstance(layer, DataProto) and key in layer.non_tensor_batch:
                return layer.non_tensor_batch[key]
        if key not in self._batch.parts[0].object_keys:
            raise KeyError(key)
        columns = [one.non_tensor_batch[key] for one in self._batch.column(key)]
        return np.concatenate(columns)[: len(self._batch)]

    def __iter__(self) -> Iterator[str]:
        held = [one for one in self._batch.layers if isinstance(one, DataProto)]
        own = [key for layer in held for key in layer.non_tensor_batch]
        return iter(dict.fromkeys([*self._batch.parts[0].object_keys, *own]))

    def __len__(self) -> int:
        return len(list(iter(self)))


def _get(refs: list[ObjectRef[DataProto]], what: str | list[str]) -> list[DataProto]:
    from ray.exceptions import ObjectLostError

    try:
        return answers_of(refs)
    except ObjectLostError as error:
        raise WorkerDied(f"column {what} is gone with the worker that made it: {error}") from error


def _bare(piece: DataProto) -> DataProto:
    return DataProto(piece.batch, piece.non_tensor_batch, {})
