"""Columns that are not tensors (numpy arrays whose first dimension is the row), and the columns of
a TensorDict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from tensordict import NonTensorData, NonTensorStack, TensorCollection, TensorDict
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.errors import DataProtoError

V = TypeVar("V")

MetaInfo = dict[str, Any]
"""Values that belong to a batch as a whole; the caller who put one under a name knows its type."""


def object_column(values: Sequence[object]) -> np.ndarray:
    """Return an [N] array of objects, one per row, even if the objects could be stacked into a
    matrix."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def as_column(key: str, values: object) -> np.ndarray:
    """Return an array unchanged, anything else with a length as objects. Raises: DataProtoError for
    a single value."""
    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, Collection) or isinstance(values, str | bytes | dict):
        raise DataProtoError(
            f"non_tensor_batch[{key!r}] is one {type(values).__name__}; a column has one value "
            "per row"
        )
    return object_column(values if isinstance(values, Sequence) else list(values))


def column_of_rows(rows: Sequence[object]) -> np.ndarray:
    """Return the column of these rows, with their own dtype for numpy scalars, of objects
    otherwise."""
    if rows and all(isinstance(row, np.generic) for row in rows):
        return np.array(rows)
    return object_column(rows)


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[Mapping[str, V]]) -> dict[str, list[V]]:
    """Convert rows to columns. Raises: DataProtoError naming the row whose keys differ from the
    first row's."""
    if not list_of_dict:
        return {}
    first = list_of_dict[0].keys()
    for row, values in enumerate(list_of_dict):
        if values.keys() != first:
            raise DataProtoError(f"row {row} has keys {sorted(values)}, row 0 has {sorted(first)}")
    lists: dict[str, list[V]] = {}
    for key in first:
        lists[key] = [values[key] for values in list_of_dict]
    return lists


def copied(meta_info: V) -> V:
    """Copy dicts and lists at every level; their other contents are shared."""
    if type(meta_info) is dict:
        items = {}
        for key, value in meta_info.items():
            items[key] = copied(value) if type(value) in (dict, list) else value
        return cast(V, items)
    if type(meta_info) is list:
        return cast(
            V, [copied(value) if type(value) in (dict, list) else value for value in meta_info]
        )
    return meta_info


def key_list(keys: str | Iterable[str] | None) -> list[str]:
    """Return keys as a list; a single string is one key."""
    if keys is None:
        return []
    if isinstance(keys, str):
        return [keys]
    return list(keys)


def tensordict_of(
    batch: TensorDict | None, columns: dict[str, np.ndarray], meta_info: MetaInfo, num_rows: int
) -> TensorDict:
    """Return one TensorDict: tensors unchanged, columns as stacks of objects, metadata as single
    objects.

    Raises: DataProtoError for a name used twice.
    """
    tensors = {} if batch is None else dict(batch.items())
    names = [*tensors, *columns, *meta_info]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataProtoError(
            f"to_tensordict: {twice} are in more than one of batch, non_tensor_batch and meta_info"
        )
    device = None if batch is None else batch.device
    whole = TensorDict(tensors, batch_size=[num_rows], device=device)
    for key, column in columns.items():
        rows = [NonTensorData(value, batch_size=[]) for value in column]
        if rows:
            stack = NonTensorStack(*rows)
        else:
            stack = NonTensorData(_Empty(str(column.dtype)), batch_size=[0])
        whole.set(key, stack)
    for key, value in copied(meta_info).items():
        whole.set_non_tensor(key, value)
    return whole


def parts_of_tensordict(
    tensor_dict: TensorDict,
) -> tuple[dict[str, Tensor], dict[str, np.ndarray], MetaInfo]:
    """Return the tensors, columns and metadata of a TensorDict made by `tensordict_of` or by
    hand."""
    tensors: dict[str, Tensor] = {}
    columns: dict[str, np.ndarray] = {}
    meta: MetaInfo = {}
    for key, value in tensor_dict.items():
        if isinstance(value, NonTensorStack):
            columns[str(key)] = column_of_rows([one.data for one in value.tensordicts])
        elif isinstance(value, NonTensorData):
            if isinstance(value.data, _Empty):
                columns[str(key)] = value.data.column()
            else:
                meta[str(key)] = value.data
        else:
            tensors[str(key)] = checked_tensor(str(key), value)
    return tensors, columns, meta


class _Empty:
    """The dtype of a column without rows, of which a stack would keep nothing."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def column(self) -> np.ndarray:
        return np.zeros(0, dtype=self.dtype)


def checked_tensor(key: str, tensor: object) -> Tensor:
    """A tensor that has rows. Raises: DataProtoError for anything else."""
    if not isinstance(tensor, Tensor):
        raise DataProtoError(f"batch[{key!r}] is a {type(tensor).__name__}, not a tensor")
    jagged.check_layout(key, tensor)
    if not tensor.dim():
        raise DataProtoError(f"batch[{key!r}] has shape [], and no dimension of rows")
    return tensor


def num_bytes(value: Tensor | TensorCollection | np.ndarray) -> int:
    """Return the bytes of the data of a tensor, a jagged tensor, a TensorDict or an array (of
    objects: their references)."""
    if isinstance(value, TensorCollection):
        return sum(num_bytes(one) for one in value.values())
    if isinstance(value, Tensor) and value.is_nested:
        return sum(part.nbytes for part in jagged.parts(value))
    return value.nbytes


def type_name(value: object) -> str:
    """Return the name of a type, with those inside a list (its first three), tuple or dict (its
    first item)."""
    if isinstance(value, np.ndarray):
        return f"ndarray{value.shape} ({value.dtype})"
    if isinstance(value, list):
        names = dict.fromkeys(type_name(one) for one in value[:3])
        return f"list[{'|'.join(names) or '...'}]"
    if isinstance(value, tuple):
        return f"tuple({', '.join(map(type_name, value))})"
    if isinstance(value, dict) and value:
        key, one = next(iter(value.items()))
        return f"dict[{type_name(key)}: {type_name(one)}]"
    return type(value).__name__
