"""DataProto: the one batch type that moves between parts (the contract of verl's `DataProto`).

`batch` holds tensors with a common leading dimension (a TensorDict), `non_tensor_batch` numpy object arrays of the same
length, `meta_info` anything that belongs to the batch as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

Index = slice | list[int] | np.ndarray | Tensor


class DataProtoError(AssertionError, ValueError):
    """A batch breaks its contract; the message names the key and the shapes."""


@dataclass
class DataProto:
    """Rows of tensors and objects, with shared metadata."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch = {} if self.non_tensor_batch is None else self.non_tensor_batch
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, Tensor] | None = None,
        non_tensors: dict[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> DataProto:
        """A batch from plain mappings; lists become object arrays. Raises: DataProtoError on unequal lengths."""
        tensors = tensors or {}
        lengths = {key: tensor.shape[0] for key, tensor in tensors.items()}
        if len(set(lengths.values())) > 1:
            raise DataProtoError(f"tensors differ in their leading dimension: {lengths}")
        batch = TensorDict(dict(tensors), batch_size=[next(iter(lengths.values()))]) if tensors else None
        arrays = {key: _object_array(values) for key, values in (non_tensors or {}).items()}
        return cls(batch, arrays, dict(meta_info or {}))

    def check_consistency(self) -> None:
        """Raises: DataProtoError when a column's length differs from the batch's."""
        num_rows = len(self)
        for key, values in self.non_tensor_batch.items():
            if not isinstance(values, np.ndarray) or len(values) != num_rows:
                shape = getattr(values, "shape", type(values).__name__)
                raise DataProtoError(f"non_tensor_batch[{key!r}] has shape {shape}, the batch has {num_rows} rows")

    def __len__(self) -> int:
        if self.batch is not None:
            return self.batch.batch_size[0]
        return len(next(iter(self.non_tensor_batch.values()))) if self.non_tensor_batch else 0

    def __getitem__(self, index: Index) -> DataProto:
        return self.select_idxs(index)

    def select_idxs(self, index: Index) -> DataProto:
        """The rows at `index` (slice, positions or boolean mask), as a new batch with the same metadata."""
        # An empty list would become a float tensor, which indexes nothing.
        at = index if isinstance(index, slice) else torch.as_tensor(index if len(index) else torch.zeros(0).long())
        at_array = at if isinstance(at, slice) else at.numpy()
        batch = None if self.batch is None else self.batch[at]
        arrays = {key: values[at_array] for key, values in self.non_tensor_batch.items()}
        return DataProto(batch, arrays, self.meta_info)

    def select(self, batch_keys: Sequence[str] = (), non_tensor_batch_keys: Sequence[str] = ()) -> DataProto:
        """The named columns only."""
        batch = self.batch.select(*batch_keys) if self.batch is not None and batch_keys else None
        return DataProto(batch, {key: self.non_tensor_batch[key] for key in non_tensor_batch_keys}, self.meta_info)

    def union(self, other: DataProto) -> DataProto:
        """Add the columns of `other` in place and return self. Metadata of `other` wins.

        Raises: DataProtoError, leaving self as it was, when a shared column differs or the lengths do.
        """
        mine, theirs = _tensors(self), _tensors(other)
        for key in mine.keys() & theirs.keys():
            if not torch.equal(mine[key], theirs[key]):
                raise DataProtoError(f"union: {key!r} differs: {_shape(mine[key])} and {_shape(theirs[key])}")
        for key in self.non_tensor_batch.keys() & other.non_tensor_batch.keys():
            if not _equal_objects(self.non_tensor_batch[key], other.non_tensor_batch[key]):
                raise DataProtoError(f"union: {key!r} differs")
        columns = theirs | other.non_tensor_batch
        if (mine or self.non_tensor_batch) and len(other) != len(self) and columns:
            shapes = {key: tuple(column.shape) for key, column in columns.items()}
            raise DataProtoError(f"union: the added columns have shapes {shapes}, the batch has {len(self)} rows")
        if theirs:
            self.batch = TensorDict(mine | theirs, batch_size=[len(other)])
        self.non_tensor_batch = {**self.non_tensor_batch, **other.non_tensor_batch}
        self.meta_info = {**self.meta_info, **other.meta_info}
        return self

    def chunk(self, chunks: int) -> list[DataProto]:
        """Equal consecutive parts. Raises: DataProtoError when the rows do not divide."""
        if chunks < 1 or len(self) % chunks:
            raise DataProtoError(f"cannot cut {len(self)} rows into {chunks} equal parts")
        return self.split(max(len(self) // chunks, 1))

    def split(self, split_size: int) -> list[DataProto]:
        """Consecutive parts of at most `split_size` rows."""
        return [self[start : start + split_size] for start in range(0, len(self), split_size)]

    @staticmethod
    def concat(parts: Sequence[DataProto]) -> DataProto:
        """The rows of all parts, in order. Raises: DataProtoError when their columns differ."""
        first = parts[0]
        for part in parts[1:]:
            if _columns(part) != _columns(first):
                raise DataProtoError(f"concat: columns differ: {_columns(first)} and {_columns(part)}")
            for key, tensor in _tensors(part).items():
                if tensor.shape[1:] != first.tensor(key).shape[1:]:
                    raise DataProtoError(f"concat: {key!r} differs: {_shape(first.tensor(key))} and {_shape(tensor)}")
        batch = None if first.batch is None else TensorDict.cat([part.batch for part in parts], dim=0)
        arrays = {key: np.concatenate([part.non_tensor_batch[key] for part in parts]) for key in first.non_tensor_batch}
        return DataProto(batch, arrays, first.meta_info)

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> DataProto:
        """Each row `repeat_times` times: aabb when interleaved, abab otherwise."""
        index = np.arange(len(self))
        index = np.repeat(index, repeat_times) if interleave else np.tile(index, repeat_times)
        return self[index]

    def reorder(self, indices: Tensor) -> DataProto:
        """Put the rows in the given order, in place, and return self."""
        ordered = self[indices]
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch
        return self

    def to(self, device: str | torch.device) -> DataProto:
        """Move the tensors in place and return self."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def tensor(self, key: str) -> Tensor:
        """One tensor column. Raises: DataProtoError naming the columns there are."""
        tensors = _tensors(self)
        if key not in tensors:
            raise DataProtoError(f"no tensor {key!r} in the batch; it has {sorted(tensors)}")
        return tensors[key]


def pad_rows(tensors: Sequence[Tensor], value: float, *, left: bool = False, length: int | None = None) -> Tensor:
    """Stack 1-D tensors into [B, T], filled with `value` on the right (or left) up to the longest or `length`."""
    width = max((len(tensor) for tensor in tensors), default=0) if length is None else length
    out = torch.full((len(tensors), width), value, dtype=tensors[0].dtype)
    for row, tensor in enumerate(tensors):
        if left:
            out[row, width - len(tensor) :] = tensor
        else:
            out[row, : len(tensor)] = tensor
    return out


def _object_array(values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    out = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        out[row] = value
    return out


def _columns(proto: DataProto) -> tuple[list[str], list[str]]:
    return sorted(_tensors(proto)), sorted(proto.non_tensor_batch)


def _tensors(proto: DataProto) -> dict[str, Tensor]:
    return {} if proto.batch is None else {str(key): tensor for key, tensor in proto.batch.items()}


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _equal_objects(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether two object columns hold equal values; arrays inside them are compared as a whole."""
    return len(one) == len(two) and all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else bool(a == b)
        for a, b in zip(one, two, strict=True)
    )
