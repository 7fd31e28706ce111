"""DataProto: rows of tensors and objects with shared metadata (the contract of verl's class of that
name).

`batch` holds tensors with a common leading dimension, dense [N, ...] or jagged [N, j, ...],
`non_tensor_batch` numpy arrays of the same length, `meta_info` anything that belongs to the batch
as a whole. The result of a method has its own `meta_info` (new dicts and lists at every level);
consecutive rows share the tensors' memory, any other choice of rows copies it.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar, overload

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.data_proto import jagged, merge
from rl_core.data_proto.columns import (
    MetaInfo,
    as_column,
    checked_tensor,
    copied,
    key_list,
    parts_of_tensordict,
    tensordict_of,
)
from rl_core.data_proto.compare import shape_of
from rl_core.data_proto.compat.methods import VerlMethods
from rl_core.data_proto.errors import DataProtoError, DataProtoKeyError
from rl_core.data_proto.padding import DataProtoConfig
from rl_core.data_proto.pickling import PackedTensorDict, Packer
from rl_core.data_proto.rows import (
    Index,
    LoaderOptions,
    Rows,
    consecutive,
    mini_batch_rows,
    unchecked,
)

V = TypeVar("V")
Proto = TypeVar("Proto", bound="DataProto")


@dataclass
class DataProtoItem:
    """One row: a TensorDict without batch dimension, the row's objects, and the batch's
    metadata."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: MetaInfo = field(default_factory=dict)
    jagged_keys: frozenset[str] = frozenset()
    """Names of tensors that were rows of a jagged column, which `collate_fn` restores."""


@dataclass(eq=False)
class DataProto(VerlMethods):
    """Rows of tensors and objects, with shared metadata. Compared by identity."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: MetaInfo = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch = {} if self.non_tensor_batch is None else self.non_tensor_batch
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, Tensor] | None = None,
        non_tensors: Mapping[str, object] | None = None,
        meta_info: MetaInfo | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """Create a batch from plain mappings, which stay unchanged; lists become object arrays.

        Args: auto_padding: pad when cut into chunks that the rows do not fill. Raises:
        DataProtoError on unequal lengths, or on more than one batch dimension (`fold_batch_dim`
        groups rows).
        """
        if num_batch_dims != 1:
            raise DataProtoError(f"a DataProto has one batch dimension, not {num_batch_dims}")
        for key, tensor in (tensors or {}).items():
            checked_tensor(key, tensor)
        lengths = {key: tensor.shape[0] for key, tensor in (tensors or {}).items()}
        if len(set(lengths.values())) > 1:
            raise DataProtoError(f"tensors differ in their leading dimension: {lengths}")
        batch = (
            TensorDict(dict(tensors), batch_size=[next(iter(lengths.values()))])
            if tensors
            else None
        )
        columns = {key: as_column(key, values) for key, values in (non_tensors or {}).items()}
        meta = dict(meta_info or {})
        if auto_padding:
            meta[DataProtoConfig.auto_padding_key] = True
        return cls(batch=batch, non_tensor_batch=columns, meta_info=meta)

    @classmethod
    def from_single_dict(
        cls,
        data: dict[str, Tensor | np.ndarray],
        meta_info: MetaInfo | None = None,
        auto_padding: bool = False,
    ) -> Self:
        """Create a batch from one mapping: tensors to `batch`, arrays to `non_tensor_batch`.

        Raises: DataProtoError for a value of another kind.
        """
        for key, value in data.items():
            if not isinstance(value, Tensor | np.ndarray):
                raise DataProtoError(
                    f"{key!r} is a {type(value).__name__}; a column is a tensor or a numpy array"
                )
        return cls.from_dict(
            {key: value for key, value in data.items() if isinstance(value, Tensor)},
            {key: value for key, value in data.items() if isinstance(value, np.ndarray)},
            meta_info,
            auto_padding=auto_padding,
        )

    @classmethod
    def from_tensordict(
        cls, tensor_dict: TensorDict, meta_info: MetaInfo | None = None, num_batch_dims: int = 1
    ) -> Self:
        """Invert `to_tensordict`: stacks of objects become columns, single objects metadata."""
        if num_batch_dims != 1:
            raise DataProtoError(f"a DataProto has one batch dimension, not {num_batch_dims}")
        tensors, columns, meta = parts_of_tensordict(tensor_dict)
        return cls.from_dict(tensors, columns, {**(meta_info or {}), **meta})

    def to_tensordict(self) -> TensorDict:
        """Return one TensorDict of everything. Raises: DataProtoError for a duplicate name."""
        return tensordict_of(self.batch, self.non_tensor_batch, self.meta_info, len(self))

    def derived(
        self, batch: TensorDict | None, columns: dict[str, np.ndarray], meta_info: MetaInfo
    ) -> Self:
        """Return a batch of the same class, with the attributes a subclass has added; nothing is
        checked."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.batch, new.non_tensor_batch, new.meta_info = batch, columns, meta_info
        return new

    def clone(self) -> Self:
        """Return a copy with separate tensors; objects in columns are shared."""
        batch = None if self.batch is None else self.batch.clone()
        columns = {key: column.copy() for key, column in self.non_tensor_batch.items()}
        return self.derived(batch, columns, copied(self.meta_info))

    def check_consistency(self) -> None:
        """Check the kind and length of all columns.

        Raises: DataProtoError when a column differs from the batch.
        """
        if self.batch is not None:
            if not isinstance(self.batch, TensorDictBase):
                raise DataProtoError(f"batch is a {type(self.batch).__name__}, not a TensorDict")
            if len(self.batch.batch_size) != 1:
                raise DataProtoError(
                    f"a DataProto has one batch dimension, not {list(self.batch.batch_size)}"
                )
            for key, value in self.batch.items():
                if isinstance(value, Tensor):
                    checked_tensor(str(key), value)
        num_rows = len(self)
        for key, column in self.non_tensor_batch.items():
            if not isinstance(column, np.ndarray) or not column.ndim or len(column) != num_rows:
                shape = getattr(column, "shape", type(column).__name__)
                raise DataProtoError(
                    f"non_tensor_batch[{key!r}] has shape {shape}, the batch has {num_rows} rows"
                )

    def __len__(self) -> int:
        if self.batch is not None:
            return self.batch.batch_size[0]
        first = next(iter(self.non_tensor_batch.values()), None)
        # A column that has no length is for `check_consistency` to name.
        return 0 if first is None or not np.ndim(first) else len(first)

    def tensor(self, key: str) -> Tensor:
        """Return one tensor column. Raises: DataProtoKeyError naming the existing columns."""
        if self.batch is None or key not in self.batch.keys():  # noqa: SIM118
            missing("tensor", key, () if self.batch is None else self.batch.keys())
        return self.batch[key]

    @overload
    def __getitem__(self, index: int | np.integer) -> DataProtoItem: ...

    @overload
    def __getitem__(self, index: Index) -> Self: ...

    def __getitem__(self, index: int | np.integer | Index) -> DataProtoItem | Self:
        """Return a DataProto for a slice, list, array or mask, a DataProtoItem for an integer.

        Raises: IndexError for a row that does not exist, TypeError for another kind of index.
        """
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            return self._item(int(index))
        if isinstance(index, slice):
            return self.slice(index.start, index.stop, index.step)
        if isinstance(index, list | np.ndarray | Tensor | range):
            return self.select_idxs(index)
        raise TypeError(
            "rows are chosen by an int, slice, list, array or mask, not by a "
            f"{type(index).__name__}"
        )

    def slice(
        self, start: int | None = None, end: int | None = None, step: int | None = None
    ) -> Self:
        """Return rows `start` to `end` (exclusive) as views; a negative step copies."""
        return self._rows(Rows(slice(start, end, step), len(self)))

    def select_idxs(self, idxs: Index) -> Self:
        """Return the rows at `idxs` (positions or a boolean mask), copied by one gather."""
        return self._rows(Rows(idxs, len(self)))

    def chunk(self, chunks: int) -> list[Self]:
        """Return `chunks` equal consecutive parts, as views.

        With padding enabled, rows that do not divide are first padded with copies of the last row;
        this batch stays unchanged. Raises: DataProtoError when the rows do not divide otherwise.
        """
        num_rows = len(self)
        if chunks < 1 or (num_rows % chunks and not self.is_padding_enabled()):
            raise DataProtoError(f"cannot cut {num_rows} rows into {chunks} equal parts")
        if not num_rows:
            return [self.slice(0, 0) for _ in range(chunks)]
        if num_rows % chunks:
            size = -(-num_rows // chunks)
            return self.select_idxs(np.minimum(np.arange(size * chunks), num_rows - 1)).split(size)
        return self.split(num_rows // chunks)

    def split(self, split_size: int) -> list[Self]:
        """Return consecutive parts of at most `split_size` rows, as views."""
        if split_size < 1:
            raise DataProtoError(f"parts have at least 1 row, not {split_size}")
        parts = consecutive(self.batch, self.non_tensor_batch, len(self), split_size)
        return [self.derived(batch, columns, copied(self.meta_info)) for batch, columns in parts]

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: LoaderOptions | None = None,
    ) -> Iterator[Self]:
        """Yield mini-batches of `mini_batch_size` rows, `epochs` times over.

        A seed shuffles, each epoch anew and every run alike, unless `dataloader_kwargs` has
        `shuffle=False`. Also supported there: `sampler`, `generator`, `drop_last`. Settings of
        background loading have no effect. Raises: DataProtoError, at the call, when the rows do not
        divide (without `drop_last`) or a setting is unknown.
        """
        rows = mini_batch_rows(len(self), mini_batch_size, epochs, seed, dataloader_kwargs)
        return (self[one] for one in rows)

    @staticmethod
    def concat(data: Sequence[Proto]) -> Proto:
        """Return the rows of all parts, in order, as the class of the first.

        `meta_info` is joined: `metrics` become lists of the parts' values, other shared keys agree
        (floats to 1e-6).
        Raises: DataProtoError for no parts, or naming the column or key that differs.
        """
        parts = list(data)
        if not parts:
            raise DataProtoError("concat: there is nothing to join; give at least one DataProto")
        batch = merge.cat_batches([part.batch for part in parts])
        columns = merge.cat_columns([part.non_tensor_batch for part in parts])
        return parts[0].derived(
            batch, columns, merge.merged_meta([part.meta_info for part in parts])
        )

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Repeat each row `repeat_times` times: aabb when interleaved, abab otherwise."""
        if repeat_times < 0:
            raise DataProtoError(f"rows cannot be repeated {repeat_times} times")
        rows = np.arange(len(self))
        return self.select_idxs(
            np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times)
        )

    def is_padding_enabled(self) -> bool:
        """Return True if `chunk` may pad, by `auto_padding` or `DataProtoConfig`."""
        return (
            bool(self.meta_info.get(DataProtoConfig.auto_padding_key, False))
            or DataProtoConfig.auto_padding
        )

    def _item(self, row: int) -> DataProtoItem:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is not among the {len(self)} rows")
        batch = None if self.batch is None else self.batch[row]
        columns = {key: column[row] for key, column in self.non_tensor_batch.items()}
        table = () if self.batch is None else self.batch.items()
        ragged = frozenset(key for key, value in table if jagged.is_jagged(value))
        return DataProtoItem(batch, columns, copied(self.meta_info), ragged)

    def _rows(self, rows: Rows) -> Self:
        return self.derived(
            rows.of_batch(self.batch),
            rows.of_columns(self.non_tensor_batch),
            copied(self.meta_info),
        )

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """Return the named columns and metadata; all of a kind if none are named.

        Unknown names of objects or metadata are ignored, as callers may name optional ones. Raises:
        DataProtoKeyError for a tensor that does not exist.
        """
        batch = self.batch
        if batch is not None:
            wanted = list(batch.keys()) if batch_keys is None else key_list(batch_keys)
            batch = unchecked({key: self.tensor(key) for key in wanted}, len(self), batch.device)
        elif batch_keys is not None:
            for key in key_list(batch_keys):
                self.tensor(key)
        columns = _only(self.non_tensor_batch, non_tensor_batch_keys)
        chosen = self.derived(batch, columns, copied(_only(self.meta_info, meta_info_keys)))
        return copy.deepcopy(chosen) if deepcopy else chosen

    def pop(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> Self:
        """Remove the named columns and metadata, in place, and return them.

        Raises: DataProtoKeyError, removing nothing, for a name that does not exist.
        """
        tensors, columns, metas = (
            key_list(batch_keys),
            key_list(non_tensor_batch_keys),
            key_list(meta_info_keys),
        )
        for key in tensors:
            self.tensor(key)
        for kind, keys, held in (
            ("column", columns, self.non_tensor_batch),
            ("metadata", metas, self.meta_info),
        ):
            for key in keys:
                if key not in held:
                    missing(kind, key, held)
        taken = {key: self.tensor(key) for key in tensors}
        batch = None
        if taken and self.batch is not None:
            batch = unchecked(taken, len(self), self.batch.device)
            self.batch = self.batch.exclude(*taken)
        return self.derived(
            batch,
            {key: self.non_tensor_batch.pop(key) for key in dict.fromkeys(columns)},
            {key: self.meta_info.pop(key) for key in dict.fromkeys(metas)},
        )

    def rename(
        self, old_keys: str | list[str] | None = None, new_keys: str | list[str] | None = None
    ) -> Self:
        """Rename tensors, in place; names may be swapped.

        Raises: DataProtoError, changing nothing, when the numbers of names differ, or one is
        missing or would be a duplicate.
        """
        for keys in (old_keys, new_keys):
            if keys is not None and not isinstance(keys, str | list):
                raise TypeError(
                    f"keys are a string or a list of strings, not a {type(keys).__name__}"
                )
        old, new = key_list(old_keys), key_list(new_keys)
        if len(old) != len(new):
            raise DataProtoError(
                f"rename: {len(old)} old names {old} and {len(new)} new names {new}"
            )
        for key in old:
            self.tensor(key)
        if self.batch is not None:
            names = dict(zip(old, new, strict=True))
            renamed = [names.get(str(key), str(key)) for key in self.batch.keys()]  # noqa: SIM118
            if len(set(renamed)) != len(renamed):
                raise DataProtoError(
                    f"rename: {old} to {new} would give the tensors the names {renamed}"
                )
            self.batch = unchecked(
                dict(zip(renamed, self.batch.values(), strict=True)), len(self), self.batch.device
            )
        return self

    def union(self, other: DataProto) -> Self:
        """Add the columns and metadata of `other`, in place.

        Raises: DataProtoError, changing nothing, when the lengths, a shared column or a shared
        metadata value differ.
        """
        mine = {} if self.batch is None else dict(self.batch.items())
        theirs = {} if other.batch is None else dict(other.batch.items())
        added = theirs | other.non_tensor_batch
        if (self.batch is not None or self.non_tensor_batch) and added and len(other) != len(self):
            shapes = {key: tuple(shape_of(column)) for key, column in added.items()}
            raise DataProtoError(
                f"union: the added columns have shapes {shapes}, the batch has {len(self)} rows"
            )
        merge.check_shared(mine, theirs, "tensor")
        merge.check_shared(self.non_tensor_batch, other.non_tensor_batch, "column")
        merge.check_shared(self.meta_info, other.meta_info, "metadata")
        if self.batch is None:
            self.batch = (
                None if other.batch is None else unchecked(theirs, len(other), other.batch.device)
            )
        else:
            batch = self.batch.clone(recurse=False) if self.batch.is_locked else self.batch
            self.batch = batch.update(
                {key: value for key, value in theirs.items() if key not in mine}
            )
        self.non_tensor_batch.update(other.non_tensor_batch)
        self.meta_info = copied(other.meta_info) | self.meta_info
        return self

    def to(self, device: str | torch.device) -> Self:
        """Move the tensors of `batch`, in place."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def save_to_disk(self, filepath: str | os.PathLike[str]) -> None:
        """Write to a temporary file, sync, rename: readers find the old or the new file."""
        path = Path(filepath)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with unfinished.open("wb") as file:
                pickle.dump(self, file, protocol=5)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    @staticmethod
    def load_from_disk(filepath: str | os.PathLike[str]) -> DataProto:
        """Load the batch in a file, as the class that wrote it. A pickle: only load files that you
        trust.

        Raises: DataProtoError for a damaged file or one that holds something else.
        """
        with Path(filepath).open("rb") as file:
            try:
                data = pickle.load(file)
            except (pickle.UnpicklingError, EOFError) as error:
                raise DataProtoError(f"{filepath} is not a whole DataProto: {error}") from error
        if not isinstance(data, DataProto):
            raise DataProtoError(f"{filepath} holds a {type(data).__name__}, not a DataProto")
        return data

    def __getstate__(self) -> object:
        return Packer().pack(dict(self.__dict__))

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["batch"], PackedTensorDict):
            # Handed over as it is, without going through a pickle.
            state = pickle.loads(pickle.dumps(state, protocol=5))
        self.__dict__.update(state)

    def __copy__(self) -> Self:
        batch = None if self.batch is None else self.batch.clone(recurse=False)
        return self.derived(batch, dict(self.non_tensor_batch), dict(self.meta_info))

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        new = object.__new__(type(self))
        memo[id(self)] = new
        attributes = {key: value for key, value in self.__dict__.items() if key != "batch"}
        new.__dict__.update(copy.deepcopy(attributes, memo))
        new.batch = None if self.batch is None else self.batch.clone()
        return new


def missing(kind: str, key: str, there: Iterable[object]) -> NoReturn:
    raise DataProtoKeyError(f"no {kind} {key!r} in the batch; it has {sorted(map(str, there))}")


def _only(values: Mapping[str, V], keys: Iterable[str] | None) -> dict[str, V]:
    if keys is None:
        return dict(values)
    wanted = set(key_list(keys))
    return {key: value for key, value in values.items() if key in wanted}
