"""Rows folded to groups, and back."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto.columns import copied
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.proto import DataProto

Proto = TypeVar("Proto", bound=DataProto)
Column = TypeVar("Column", Tensor, np.ndarray)


def fold_batch_dim(data: Proto, new_batch_size: int) -> Proto:
    """Reshape [bsz, ...] to [new_batch_size, bsz // new_batch_size, ...]. Raises: DataProtoError
    when it does not divide."""
    num_rows = len(data)
    if new_batch_size < 1 or num_rows % new_batch_size:
        raise DataProtoError(f"cannot fold {num_rows} rows into {new_batch_size} groups")
    return _reshaped(data, (new_batch_size, num_rows // new_batch_size), 1)


def unfold_batch_dim(data: Proto, batch_dims: int = 2) -> Proto:
    """Merge the first `batch_dims` dimensions of every column. Raises: DataProtoError when a column
    has fewer."""
    return _reshaped(data, (-1,), batch_dims)


def _reshaped(data: Proto, leading: tuple[int, ...], replaced: int) -> Proto:
    """Return every column with its first `replaced` dimensions reshaped to `leading`."""
    batch = None
    if data.batch is not None:
        values = {key: _reshape(key, value, leading, replaced) for key, value in data.batch.items()}
        num_rows = next(
            (len(value) for value in values.values()), len(data) if leading[0] < 0 else leading[0]
        )
        batch = TensorDict(values, batch_size=[num_rows], device=data.batch.device)
    columns = {}
    for key, column in data.non_tensor_batch.items():
        columns[key] = _reshape(key, column, leading, replaced)
    folded = data.derived(batch, columns, copied(data.meta_info))
    folded.check_consistency()
    return folded


def _reshape(key: str, value: Column, leading: tuple[int, ...], replaced: int) -> Column:
    if isinstance(value, Tensor) and value.is_nested:
        raise DataProtoError(
            f"{key!r} is jagged and cannot be folded; pad it, or fold the other columns"
        )
    if value.ndim < replaced:
        raise DataProtoError(
            f"{key!r} has shape {tuple(value.shape)}, which has no {replaced} leading dimensions"
        )
    count = int(np.prod(value.shape[:replaced]))
    sizes = (count,) if leading == (-1,) else leading
    return value.reshape(*sizes, *value.shape[replaced:])
