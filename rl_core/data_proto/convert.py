"""To and from other forms: TensorDicts that hold everything, and lists of single rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.columns import column_of_rows, copied, list_of_dict_to_dict_of_list
from rl_core.data_proto.errors import DataProtoError

if TYPE_CHECKING:
    from rl_core.data_proto.core import DataProtoCore
    from rl_core.data_proto.item import DataProtoItem
    from rl_core.data_proto.proto import DataProto


def tensordict_of(data: DataProtoCore) -> TensorDict:
    """Tensors as they are, columns as stacks of objects, metadata as single objects.

    Raises: DataProtoError for a name used twice.
    """
    tensors = {} if data.batch is None else dict(data.batch.items())
    names = [*tensors, *data.non_tensor_batch, *data.meta_info]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataProtoError(f"to_tensordict: {twice} are in more than one of batch, non_tensor_batch and meta_info")
    device = None if data.batch is None else data.batch.device
    whole = TensorDict(tensors, batch_size=[len(data)], device=device)
    for key, column in data.non_tensor_batch.items():
        rows = [NonTensorData(value, batch_size=[]) for value in column]
        stack: Any = NonTensorStack(*rows) if rows else NonTensorData(_Empty(str(column.dtype)), batch_size=[0])
        whole.set(key, stack)
    for key, value in copied(data.meta_info).items():
        single: Any = NonTensorData(value, batch_size=[len(data)])
        whole.set(key, single)
    return whole


def parts_of(tensor_dict: TensorDict) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Tensors, columns and metadata of a TensorDict made by `tensordict_of` or by hand."""
    tensors: dict[str, Any] = {}
    columns: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    for key, value in tensor_dict.items():
        if isinstance(value, NonTensorStack):
            columns[key] = column_of_rows([one.data for one in value.tensordicts])
        elif isinstance(value, NonTensorData):
            if isinstance(value.data, _Empty):
                columns[key] = value.data.column()
            else:
                meta[key] = value.data
        else:
            tensors[key] = value
    return tensors, columns, meta


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """A batch of single rows; jagged where their lengths differ. Raises: DataProtoError for no rows."""
    from rl_core.data_proto.proto import DataProto

    if not x:
        raise DataProtoError("collate_fn: no rows to put together")
    batch = None
    if x[0].batch is not None:
        table = list_of_dict_to_dict_of_list([dict(item.batch.items()) for item in x if item.batch is not None])
        ragged = frozenset().union(*(item.jagged_keys for item in x))
        shared_offsets: dict[tuple[int, ...], Tensor] = {}
        values = {key: _stacked(rows, key in ragged, shared_offsets) for key, rows in table.items()}
        batch = TensorDict(values, batch_size=[len(x)])
    columns = list_of_dict_to_dict_of_list([item.non_tensor_batch for item in x])
    return DataProto(batch, {key: column_of_rows(rows) for key, rows in columns.items()})


def _stacked(rows: list[Any], ragged: bool, shared_offsets: dict[tuple[int, ...], Tensor]) -> Any:
    lengths = tuple(len(row) for row in rows) if isinstance(rows[0], Tensor) and rows[0].dim() else ()
    if not ragged and len(set(lengths)) <= 1:
        return torch.stack(rows)
    if lengths not in shared_offsets:
        shared_offsets[lengths] = jagged.offsets_of(torch.tensor(lengths, device=rows[0].device))
    return jagged.join(torch.cat(rows), shared_offsets[lengths])


class _Empty:
    """The dtype of a column without rows, of which a stack would keep nothing."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def column(self) -> Any:
        return np.zeros(0, dtype=self.dtype)
