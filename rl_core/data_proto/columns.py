"""Columns that are not tensors: numpy arrays whose first dimension is the row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rl_core.data_proto.errors import DataProtoError


def object_column(values: Sequence[Any]) -> np.ndarray:
    """[N] array of objects, one per row, even where the objects could be stacked into a matrix."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def as_column(key: str, values: Any) -> np.ndarray:
    """An array as it is, anything else with a length as objects. Raises: DataProtoError for a single value."""
    if isinstance(values, np.ndarray):
        return values
    if not hasattr(values, "__len__") or isinstance(values, str | bytes | dict):
        raise DataProtoError(
            f"non_tensor_batch[{key!r}] is one {type(values).__name__}; a column has one value per row"
        )
    return object_column(values if isinstance(values, Sequence) else list(values))


def column_of_rows(rows: Sequence[Any]) -> np.ndarray:
    """The column that has these rows: of their own dtype for numpy scalars, of objects otherwise."""
    if rows and all(isinstance(row, np.generic) for row in rows):
        return np.array(rows)
    return object_column(rows)


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows to columns. Raises: DataProtoError naming the row whose keys differ from the first row's."""
    if not list_of_dict:
        return {}
    first = list_of_dict[0].keys()
    for row, values in enumerate(list_of_dict):
        if values.keys() != first:
            raise DataProtoError(f"row {row} has keys {sorted(values)}, row 0 has {sorted(first)}")
    return {key: [values[key] for values in list_of_dict] for key in first}


def copied(meta_info: Any) -> Any:
    """Dicts and lists are new at every level, what they hold is shared."""
    if type(meta_info) is dict:
        return {key: copied(value) if type(value) in (dict, list) else value for key, value in meta_info.items()}
    if type(meta_info) is list:
        return [copied(value) if type(value) in (dict, list) else value for value in meta_info]
    return meta_info


def key_list(keys: str | Iterable[str] | None) -> list[str]:
    """Keys as a list; a single string is one key."""
    return [] if keys is None else [keys] if isinstance(keys, str) else list(keys)
