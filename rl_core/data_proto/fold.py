"""Rows to groups of rows and back, and columns cut into chunks that become rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.columns import copied, object_column
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.merge import describe
from rl_core.data_proto.rows import Rows

if TYPE_CHECKING:
    from rl_core.data_proto.core import DataProtoCore

Proto = TypeVar("Proto", bound="DataProtoCore")


def fold_batch_dim(data: Proto, new_batch_size: int) -> Proto:
    """[bsz, ...] to [new_batch_size, bsz // new_batch_size, ...]. Raises: DataProtoError when it does not divide."""
    num_rows = len(data)
    if new_batch_size < 1 or num_rows % new_batch_size:
        raise DataProtoError(f"cannot fold {num_rows} rows into {new_batch_size} groups")
    return _reshaped(data, (new_batch_size, num_rows // new_batch_size), 1)


def unfold_batch_dim(data: Proto, batch_dims: int = 2) -> Proto:
    """The first `batch_dims` dimensions of every column become one. Raises: DataProtoError when a column has fewer."""
    return _reshaped(data, (-1,), batch_dims)


def unfold_columns(data: Proto, n_split: int, split_keys: Collection[str] | None) -> Proto:
    """The work of `DataProto.unfold_column_chunks`."""
    if n_split < 1:
        raise DataProtoError(f"columns are cut into at least 1 chunk, not {n_split}")
    wanted = set(split_keys or ())
    rows = Rows(np.repeat(np.arange(len(data)), n_split), len(data))
    batch = None
    if data.batch is not None:
        values = {}
        for key, value in data.batch.items():
            values[key] = _chunks(key, value, n_split) if key in wanted else rows.of(value)
        batch = TensorDict(values, batch_size=[rows.count], device=data.batch.device)
    columns = {
        key: _column_chunks(key, column, n_split) if key in wanted else column[rows.array]
        for key, column in data.non_tensor_batch.items()
    }
    return data.derived(batch, columns, copied(data.meta_info))


def _reshaped(data: Proto, leading: tuple[int, ...], replaced: int) -> Proto:
    """Every column with its first `replaced` dimensions reshaped to `leading`."""
    batch = None
    if data.batch is not None:
        values = {key: _reshape(key, value, leading, replaced) for key, value in data.batch.items()}
        num_rows = next((len(value) for value in values.values()), len(data) if leading[0] < 0 else leading[0])
        batch = TensorDict(values, batch_size=[num_rows], device=data.batch.device)
    columns = {key: _reshape(key, column, leading, replaced) for key, column in data.non_tensor_batch.items()}
    folded = data.derived(batch, columns, copied(data.meta_info))
    folded.check_consistency()
    return folded


def _reshape(key: str, value: Any, leading: tuple[int, ...], replaced: int) -> Any:
    if isinstance(value, Tensor) and value.is_nested:
        raise DataProtoError(f"{key!r} is jagged and cannot be folded; pad it, or fold the other columns")
    if value.ndim < replaced:
        raise DataProtoError(f"{key!r} has shape {tuple(value.shape)}, which has no {replaced} leading dimensions")
    count = int(np.prod(value.shape[:replaced]))
    sizes = (count,) if leading == (-1,) else leading
    return value.reshape(*sizes, *value.shape[replaced:])


def _chunks(key: str, value: Any, n_split: int) -> Any:
    if isinstance(value, Tensor) and value.is_nested:
        return jagged.unfolded(key, value, n_split)
    if value.ndim < 2 or value.shape[1] % n_split:
        raise DataProtoError(f"{key!r}: {describe(value)} has no second dimension that divides by {n_split}")
    return value.reshape(value.shape[0] * n_split, value.shape[1] // n_split, *value.shape[2:])


def _column_chunks(key: str, column: np.ndarray, n_split: int) -> np.ndarray:
    """A matrix, or lists of one length, by the second dimension; other objects by the length of each."""
    if column.ndim == 1 and all(isinstance(value, list | tuple) for value in column):
        lengths = {len(value) for value in column}
        column = np.array(column.tolist(), dtype=object) if len(lengths) == 1 else column
    if column.ndim > 1:
        return _chunks(key, column, n_split)
    pieces = []
    for row, value in enumerate(column):
        if not hasattr(value, "__len__") or len(value) % n_split:
            raise DataProtoError(f"{key!r}: row {row} has no length that divides by {n_split}: {describe(value)}")
        size = len(value) // n_split
        pieces.extend(value[start * size : (start + 1) * size] for start in range(n_split))
    return object_column(pieces)
