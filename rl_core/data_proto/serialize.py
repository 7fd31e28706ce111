"""Tensors as plain (dtype, shape, bytes) tuples, for transports that carry neither pickles nor tensors."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.pickling import flat_bytes, tensor_from_bytes

SerializedTensor = tuple[str, tuple[int, ...], Any]
"""Name of the dtype, shape, and a buffer of the bytes in row order."""


def serialize_single_tensor(obj: Tensor) -> SerializedTensor:
    """A dense tensor as (dtype, shape, bytes); the bytes are the tensor's own memory where they can be."""
    return flat_bytes(obj)


def deserialize_single_tensor(arr: SerializedTensor) -> Tensor:
    """The tensor, in memory of its own."""
    dtype, shape, data = arr
    return tensor_from_bytes(dtype, tuple(shape), bytearray(data))


def serialize_tensordict(batch: TensorDict) -> tuple[tuple[int, ...], str | None, dict[str, Any]]:
    """Batch size, device and the tensors; a nested one as its layout and its rows."""
    items: dict[str, Any] = {}
    for key, value in batch.items():
        if not isinstance(value, Tensor):
            raise DataProtoError(f"{key!r} is a {type(value).__name__}; only tensors can be serialised")
        items[key] = _nested(value) if value.is_nested else serialize_single_tensor(value)
    return tuple(batch.batch_size), None if batch.device is None else str(batch.device), items


def deserialize_tensordict(arr: tuple[Any, Any, dict[str, Any]]) -> TensorDict:
    """The TensorDict that `serialize_tensordict` took. Raises: DataProtoError for anything else."""
    batch_size, device, items = arr
    values: dict[str, Tensor] = {}
    for key, item in items.items():
        if len(item) == 3:
            values[key] = deserialize_single_tensor(item)
        elif len(item) == 2 and item[0] in ("jagged", "strided"):
            values[key] = _from_rows(*item)
        else:
            raise DataProtoError(
                f"{key!r}: a serialised tensor is (dtype, shape, bytes) or (layout, rows), not {len(item)} values"
            )
    return TensorDict(values, batch_size=batch_size, device=device)


def _nested(nested: Tensor) -> tuple[str, list[SerializedTensor]]:
    """The layout and the rows, of a jagged tensor with an empty one behind them: it keeps dtype and trailing shape."""
    if nested.layout != torch.jagged:
        return "strided", [serialize_single_tensor(row) for row in nested.unbind()]
    values, offsets = jagged.parts(nested.detach())
    rows = values.split(offsets.diff().tolist()) if len(offsets) > 1 else ()
    return "jagged", [serialize_single_tensor(row) for row in (*rows, values[:0])]


def _from_rows(layout: str, rows: list[SerializedTensor]) -> Tensor:
    tensors = [deserialize_single_tensor(row) for row in rows]
    if layout == "strided":
        return torch.nested.as_nested_tensor(tensors)
    lengths = torch.tensor([len(tensor) for tensor in tensors[:-1]], dtype=torch.long)
    return jagged.join(torch.cat(tensors), jagged.offsets_of(lengths))
