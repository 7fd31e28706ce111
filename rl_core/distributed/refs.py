"""Batches by reference: the rows stay where they were made, and a consumer fetches those that it
was given.

A worker that answers with a DataProto puts its wide columns into its node's object store, one
object per column, and sends a description: columns, number of rows, metadata, and the narrow
columns themselves (rewards, counts). The driver joins descriptions, reads narrow columns without
fetching anything, fetches a wide one only when it is requested by name, and cuts without touching a
row: a shard is a list of (part, first row, end row).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import DataProto, DataProtoError, MetaInfo
from rl_core.distributed.collect import join_meta, real_rows
from rl_core.errors import WorkerDied
from rl_core.ranks.dispatch import fill_up, shard_rows

if TYPE_CHECKING:
    from ray import ObjectRef

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

    def column(self, key: str) -> DataProto:
        """Return one column, fetched if it is wide."""
        if key in self.wide:
            return _get([self.wide[key]], key)[0]
        return self.narrow.select([key], [])

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
        return _side_by_side([piece[start:stop] for piece in pieces], self.meta_info)

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
        self._added = DataProto()

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
        return self.parts[0].keys | _names(self._added)

    @property
    def non_tensor_batch(self) -> Mapping[str, np.ndarray]:
        """The object columns; each is fetched on access."""
        return _ObjectColumns(self)

    def tensor(self, key: str) -> Tensor:
        """Return one tensor column, [rows, ...]; a narrow one without fetching. Raises:
        DataProtoError when there is none."""
        if self._added.batch is not None and key in list(self._added.batch.keys()):
            return self._added.tensor(key)
        if key not in self.parts[0].tensor_keys:
            raise DataProtoError(
                f"no tensor {key!r} in the batch; it has {sorted(self.parts[0].tensor_keys)}"
            )
        return torch.cat([part.column(key).tensor(key) for part in self.parts])[: len(self)]

    def union(self, other: DataProto) -> DataProtoRef:
        """Add columns that this process holds, in place, and return self. Raises: DataProtoError on
        a shared name."""
        shared = self.keys & _names(other)
        if shared or len(other) != len(self):
            raise DataProtoError(
                f"union: {len(other)} rows of {sorted(_names(other))} do not go with {len(self)} "
                "rows" + (f"; shared columns: {sorted(shared)}" if shared else "")
            )
        self._added = _side_by_side([self._added, other], {})
        return self

    def replace(self, other: DataProto) -> DataProtoRef:
        """Replace columns of the same name by columns of this process, or add them, and return
        self.

        Raises: DataProtoError when the numbers of rows differ.
        """
        if len(other) != len(self):
            raise DataProtoError(
                f"replace: {len(other)} rows of {sorted(_names(other))} for {len(self)} rows"
            )
        self._added = _side_by_side([self._added, other], {})
        return self

    def select(self, keys: Sequence[str]) -> DataProtoRef:
        """Return the same rows with some of their columns, for a consumer that needs no others;
        nothing is fetched.

        Raises: DataProtoError on an unknown column.
        """
        wanted = set(keys)
        if wanted - self.keys:
            raise DataProtoError(
                f"no columns {sorted(wanted - self.keys)} in the batch; it has {sorted(self.keys)}"
            )
        chosen = DataProtoRef([part.only(wanted - _names(self._added)) for part in self.parts])
        chosen._num_rows = self._num_rows
        added = self._added.select(
            [key for key in _tensor_names(self._added) if key in wanted],
            [key for key in self._added.non_tensor_batch if key in wanted],
        )
        if _names(added):
            return chosen.replace(added)
        return chosen

    def kept_here(self) -> DataProtoRef:
        """Return the same rows in the object store as this process's own, so that they stay when
        the workers end that made them."""
        parts = []
        for part in self.parts:
            columns = _get(list(part.wide.values()), list(part.wide))
            wide = {key: put(one).ref for key, one in zip(part.wide, columns, strict=True)}
            parts.append(replace(part, wide=wide))
        kept = DataProtoRef(parts)
        kept._num_rows, kept._added = self._num_rows, self._added
        return kept

    def spans(self, start: int, stop: int) -> list[tuple[Part, int, int]]:
        """Return where some rows lie: parts, with first and end row in each."""
        spans, first = [], 0
        for one in self.parts:
            span = max(start - first, 0), min(stop - first, one.num_rows)
            if span[0] < span[1]:
                spans.append((one, *span))
            first += one.num_rows
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
        wanted = self.keys if keys is None else set(keys)
        if wanted - self.keys:
            raise DataProtoError(
                f"no columns {sorted(wanted - self.keys)} in the batch; it has {sorted(self.keys)}"
            )
        start, stop, num_copies = shard_rows(len(self), num_parts, part)
        spans = self.spans(start, stop)
        added = self._added.select(
            [key for key in _tensor_names(self._added) if key in wanted],
            [key for key in self._added.non_tensor_batch if key in wanted],
        )
        mine = added[start:stop] if _names(added) else added
        return ShardRef(
            tuple(spans), wanted, mine, self.meta_info, num_copies, -(-len(self) // num_parts)
        )


@dataclass(frozen=True)
class ShardRef:
    """Rows for one consumer; `fetch` brings these rows alone into its process."""

    spans: tuple[tuple[Part, int, int], ...]
    keys: set[str]
    added: DataProto
    """Columns that the driver added, these rows only."""
    meta_info: MetaInfo
    num_copies: int
    num_rows: int
    """Number of rows, including copies."""

    def fetch(self, *, with_padding_count: bool = True) -> DataProto:
        """Fetch the rows, padded with copies. Raises: WorkerDied when the worker that made them is
        gone."""
        pieces = [part.rows(start, stop, self.keys) for part, start, stop in self.spans]
        if len(pieces) == 1:
            rows = pieces[0]
        else:
            rows = DataProto.concat([_bare(piece) for piece in pieces])
        whole = _side_by_side([rows, self.added], self.meta_info)
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

    def shard(self, num_parts: int, part: int) -> ShardRef:
        """Return one of `num_parts` shards of equal size, by reference. Raises: DataProtoError when
        the rows do not divide."""
        if len(self) % num_parts:
            raise DataProtoError(f"{len(self)} rows in an order do not divide into {num_parts}")
        size = len(self) // num_parts
        order = np.concatenate([np.arange(*block) for block in self.blocks])
        rows = order[part * size : (part + 1) * size]
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        spans: list[tuple[Part, int, int]] = []
        for block in np.split(rows, breaks):
            spans += self.batch.spans(int(block[0]), int(block[-1]) + 1)
        added = self.batch._added
        mine = added[rows] if _names(added) else added
        return ShardRef(tuple(spans), self.batch.keys, mine, self.batch.meta_info, 0, size)


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
        if key in self._batch._added.non_tensor_batch:
            return self._batch._added.non_tensor_batch[key]
        if key not in self._batch.parts[0].object_keys:
            raise KeyError(key)
        columns = [part.column(key).non_tensor_batch[key] for part in self._batch.parts]
        return np.concatenate(columns)[: len(self._batch)]

    def __iter__(self) -> Iterator[str]:
        return iter(
            dict.fromkeys([*self._batch.parts[0].object_keys, *self._batch._added.non_tensor_batch])
        )

    def __len__(self) -> int:
        return len(list(iter(self)))


def _get(refs: list[ObjectRef[DataProto]], what: str | list[str]) -> list[DataProto]:
    import ray
    from ray.exceptions import ObjectLostError

    try:
        return ray.get(refs)
    except ObjectLostError as error:
        raise WorkerDied(f"column {what} is gone with the worker that made it: {error}") from error


def _side_by_side(pieces: Sequence[DataProto], meta_info: MetaInfo) -> DataProto:
    """Join the columns of pieces with the same rows; empty pieces are left out."""
    tensors: dict[str, Tensor] = {}
    arrays: dict[str, np.ndarray] = {}
    for piece in pieces:
        arrays |= piece.non_tensor_batch
        tensors |= (
            {} if piece.batch is None else {str(key): tensor for key, tensor in piece.batch.items()}
        )
    num_rows = next((len(piece) for piece in pieces if _names(piece)), 0)
    batch = TensorDict(tensors, batch_size=[num_rows]) if tensors else None
    return DataProto(batch, arrays, dict(meta_info))


def _bare(piece: DataProto) -> DataProto:
    return DataProto(piece.batch, piece.non_tensor_batch, {})


def _tensor_names(piece: DataProto) -> list[str]:
    return [] if piece.batch is None else [str(key) for key in piece.batch.keys()]  # noqa: SIM118


def _names(piece: DataProto) -> set[str]:
    return {*_tensor_names(piece), *piece.non_tensor_batch}
