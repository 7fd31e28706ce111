"""What is in a batch, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.data_proto import jagged

if TYPE_CHECKING:
    from rl_core.data_proto.core import DataProtoCore


def num_bytes(value: Any) -> int:
    """Bytes of the data of a tensor, a jagged tensor, a TensorDict or an array (of objects: their references)."""
    if isinstance(value, TensorDictBase):
        return sum(num_bytes(one) for one in value.values())
    if isinstance(value, Tensor) and value.is_nested:
        return sum(part.nbytes for part in jagged.parts(value))
    return value.nbytes


def size_line(data: DataProtoCore, prefix: str) -> str:
    """Sizes of the tensors and of the columns, in GB (2^30 bytes)."""
    tensors = 0 if data.batch is None else num_bytes(data.batch)
    columns = sum(num_bytes(column) for column in data.non_tensor_batch.values())
    line = f"Size of tensordict: {tensors / 2**30} GB, size of non_tensor_batch: {columns / 2**30} GB"
    return f"{prefix}, {line}" if prefix else line


def listing(data: DataProtoCore) -> str:
    """One line per column and metadata key: shape, dtype, device; types of nested metadata."""
    lines = ["batch"]
    for key, value in () if data.batch is None else data.batch.items():
        if isinstance(value, Tensor):
            shape = ", ".join(str(size) if isinstance(size, int) else "j" for size in value.shape)
            comma = "," if value.dim() == 1 else ""
            lines.append(f"  {key}: ({shape}{comma}) ({value.dtype}) {value.device}")
        else:
            lines.append(f"  {key}: {type(value).__name__}")
    lines.append("non_tensor_batch")
    lines += [f"  {key}: {type_name(column)}" for key, column in data.non_tensor_batch.items()]
    lines.append("meta_info")
    lines += [f"  {key}: {type_name(value)}" for key, value in data.meta_info.items()]
    return "\n".join(lines)


def type_name(value: Any) -> str:
    """Name of a type, with those inside a list (its first three), tuple or dict (its first item)."""
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
