"""Columns cut into chunks of their second dimension, which become rows."""

from __future__ import annotations

from typing import overload

import numpy as np
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.columns import object_column
from rl_core.data_proto.compare import describe
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.rows import Value


@overload
def chunked(key: str, value: np.ndarray, n_split: int) -> np.ndarray: ...
@overload
def chunked(key: str, value: Value, n_split: int) -> Value: ...
def chunked(key: str, value: Value | np.ndarray, n_split: int) -> Value | np.ndarray:
    """Cut each row into `n_split` rows: [N, n_split * C, ...] to [N * n_split, C, ...].

    A jagged column is cut by each row's length, an object column by each object's (a matrix, or
    lists of one length, by the second dimension). Raises: DataProtoError naming the column when it
    does not divide.
    """
    if isinstance(value, Tensor) and value.is_nested:
        return jagged.unfolded(key, value, n_split)
    if isinstance(value, np.ndarray):
        if value.ndim == 1 and all(isinstance(one, list | tuple) for one in value):
            lengths = {len(one) for one in value}
            value = np.array(value.tolist(), dtype=object) if len(lengths) == 1 else value
        if value.ndim == 1:
            return _chunked_objects(key, value, n_split)
    if value.ndim < 2 or value.shape[1] % n_split:
        raise DataProtoError(
            f"{key!r}: {describe(value)} has no second dimension that divides by {n_split}"
        )
    return value.reshape(value.shape[0] * n_split, value.shape[1] // n_split, *value.shape[2:])


def _chunked_objects(key: str, column: np.ndarray, n_split: int) -> np.ndarray:
    pieces = []
    for row, value in enumerate(column):
        if not hasattr(value, "__len__") or len(value) % n_split:
            raise DataProtoError(
                f"{key!r}: row {row} has no length that divides by {n_split}: {describe(value)}"
            )
        size = len(value) // n_split
        pieces.extend(value[start * size : (start + 1) * size] for start in range(n_split))
    return object_column(pieces)
