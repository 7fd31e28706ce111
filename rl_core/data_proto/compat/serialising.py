"""Batches as plain (dtype, shape, bytes) tuples, for transports that carry neither pickles nor
tensors."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.pickling import Bytes, flat_bytes, tensor_from_bytes

SerializedTensor = tuple[str, tuple[int, ...], Bytes]
"""Name of the dtype, shape, and a buffer of the bytes in row order."""
SerializedRows = tuple[str, list[SerializedTensor]]
"""Layout and rows of a nested tensor."""
Serialized = tuple[tuple[int, ...], str | None, dict[str, SerializedTensor | SerializedRows]]
"""Batch size, device and tensors of a TensorDict."""


def serialize_single_tensor(obj: Tensor) -> SerializedTensor:
    """Return a dense tensor as (dtype, shape, bytes); the bytes are the tensor's own memory if
    possible."""
    return flat_bytes(obj)


def deserialize_single_tensor(arr: SerializedTensor) -> Tensor:
    """Return the tensor, in its own memory."""
    dtype, shape, data = arr
    return tensor_from_bytes(dtype, tuple(shape), bytearray(data))


def serialize_tensordict(batch: TensorDict) -> Serialized:
    """Return batch size, device and the tensors; a nested one as its layout and its rows."""
    items: dict[str, SerializedTensor | SerializedRows] = {}
    for key, value in batch.items():
        if not isinstance(value, Tensor):
            raise DataProtoError(
                f"{key!r} is a {type(value).__name__}; only tensors can be serialised"
            )
        items[str(key)] = _nested(value) if value.is_nested else serialize_single_tensor(value)
    return tuple(batch.batch_size), None if batch.device is None else str(batch.device), items


def deserialize_tensordict(arr: Serialized) -> TensorDict:
    """Return the TensorDict that `serialize_tensordict` serialised. Raises: DataProtoError for
    anything else."""
    batch_size, device, items = arr
    values: dict[str, Tensor] = {}
    for key, item in items.items():
        if len(item) == 3:
            values[key] = deserialize_single_tensor(item)
        elif len(item) == 2 and item[0] in ("jagged", "strided"):
            values[key] = _from_rows(*item)
        else:
            raise DataProtoError(
                f"{key!r}: a serialised tensor is (dtype, shape, bytes) or (layout, rows), not "
                f"{len(item)} values"
            )
    return TensorDict(values, batch_size=batch_size, device=device)


def _nested(nested: Tensor) -> SerializedRows:
    """Return the layout and the rows, followed by an empty row for a jagged tensor, which keeps
    dtype and trailing shape."""
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
