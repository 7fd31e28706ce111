"""A batch of single rows, as a DataLoader collates them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.columns import column_of_rows, list_of_dict_to_dict_of_list
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.proto import DataProto, DataProtoItem


def collate_fn(x: Sequence[DataProtoItem]) -> DataProto:
    """Return a batch of single rows; jagged where their lengths differ. Raises: DataProtoError for
    no rows."""
    if not x:
        raise DataProtoError("collate_fn: no rows to put together")
    batch = None
    if x[0].batch is not None:
        table = list_of_dict_to_dict_of_list(
            [dict(item.batch.items()) for item in x if item.batch is not None]
        )
        ragged = frozenset().union(*(item.jagged_keys for item in x))
        shared_offsets: dict[tuple[int, ...], Tensor] = {}
        values = {}
        for key, rows in table.items():
            values[key] = _stacked(rows, key in ragged, shared_offsets)
        batch = TensorDict(values, batch_size=[len(x)])
    columns = list_of_dict_to_dict_of_list([item.non_tensor_batch for item in x])
    return DataProto(batch, {key: column_of_rows(rows) for key, rows in columns.items()})


def _stacked(
    rows: list[Tensor], ragged: bool, shared_offsets: dict[tuple[int, ...], Tensor]
) -> Tensor:
    if isinstance(rows[0], Tensor) and rows[0].dim():
        lengths = tuple(len(row) for row in rows)
    else:
        lengths = ()
    if not ragged and len(set(lengths)) <= 1:
        return torch.stack(rows)
    if lengths not in shared_offsets:
        shared_offsets[lengths] = jagged.offsets_of(torch.tensor(lengths, device=rows[0].device))
    return jagged.join(torch.cat(rows), shared_offsets[lengths])
