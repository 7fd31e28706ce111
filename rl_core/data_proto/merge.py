"""Union (more columns) and concatenation (more rows). Everything is checked before anything
changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.columns import MetaInfo, copied
from rl_core.data_proto.compare import describe, same, shape_of
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.rows import Value, unchecked

META_TOLERANCE = 1e-6
"""Tolerance of equal metadata floats, which ranks may compute in another order."""

METRICS = "metrics"

Columns = Mapping[str, Value] | Mapping[str, np.ndarray] | MetaInfo | TensorDictBase
"""Named values."""


def union_tensor_dict(tensor_dict1: TensorDict, tensor_dict2: TensorDict) -> TensorDict:
    """Add the tensors of the second to the first, in place, and return it.

    Raises: DataProtoError, changing nothing, when the batch sizes or a shared tensor differ.
    """
    if tensor_dict1.batch_size != tensor_dict2.batch_size:
        sizes = f"{list(tensor_dict1.batch_size)} and {list(tensor_dict2.batch_size)}"
        shapes = {key: shape_of(value) for key, value in tensor_dict2.items()}
        raise DataProtoError(
            f"union: batch sizes differ: {sizes}; the added tensors have shapes {shapes}"
        )
    check_shared(tensor_dict1, tensor_dict2, "tensor")
    for key, value in tensor_dict2.items():
        if key not in tensor_dict1.keys():  # noqa: SIM118
            tensor_dict1.set(key, value)
    return tensor_dict1


def union_numpy_dict(
    tensor_dict1: dict[str, np.ndarray], tensor_dict2: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Add the columns of the second to the first, in place, and return it.

    Raises: DataProtoError, changing nothing, when a shared column differs or is no array.
    """
    for table in (tensor_dict1, tensor_dict2):
        for key, column in table.items():
            if not isinstance(column, np.ndarray):
                raise DataProtoError(
                    f"union: {key!r} is a {type(column).__name__}, not a numpy array"
                )
    check_shared(tensor_dict1, tensor_dict2, "column")
    tensor_dict1.update(tensor_dict2)
    return tensor_dict1


def check_shared(one: Columns, two: Columns, kind: str) -> None:
    """Check that shared keys have equal values.

    Raises: DataProtoError naming a key whose values differ.
    """
    for key in sorted(set(one.keys()) & set(two.keys()), key=str):
        if not same(one[key], two[key]):
            raise DataProtoError(
                f"union: {key!r} differs: {describe(one[key])} and {describe(two[key])} ({kind})"
            )


def merged_meta(metas: Sequence[MetaInfo]) -> MetaInfo:
    """Return one `meta_info` for the joined rows: equal values once, `metrics` as a list of values
    under each name.

    Raises: DataProtoError when a key other than `metrics` has values that differ by more than 1e-6.
    """
    merged: MetaInfo = {}
    metrics: list[Mapping[str, object]] = []
    for part, meta in enumerate(metas):
        for key, value in meta.items():
            if key == METRICS:
                if isinstance(value, list):
                    metrics.extend(value)
                elif value is not None:
                    metrics.append(value)
            elif key not in merged:
                merged[key] = copied(value)
            elif not same(merged[key], value, tolerance=META_TOLERANCE):
                values = f"{describe(merged[key])} and, in part {part}, {describe(value)}"
                raise DataProtoError(f"concat: meta_info[{key!r}] differs: {values}")
    for one in metrics:
        if not isinstance(one, Mapping):
            raise DataProtoError(
                f"concat: meta_info['metrics'] holds {describe(one)}; it is a dict or a list of "
                "dicts"
            )
    if metrics:
        values_by_name: dict[str, list[object]] = {}
        for one in metrics:
            for name, value in one.items():
                values_by_name.setdefault(name, []).append(value)
        merged[METRICS] = values_by_name
    return merged


def cat_batches(batches: Sequence[TensorDictBase | None]) -> TensorDict | None:
    """Return the rows of all batches. Raises: DataProtoError when their keys, kinds or trailing
    shapes differ."""
    first = batches[0]
    keys = None if first is None else sorted(first.keys(), key=str)
    for part, batch in enumerate(batches):
        other = None if batch is None else sorted(batch.keys(), key=str)
        if other != keys:
            raise DataProtoError(f"concat: columns differ: {keys} and, in part {part}, {other}")
    if first is None:
        return None
    present = [batch for batch in batches if batch is not None]
    shared_offsets: dict[tuple[int, ...], Tensor] = {}
    values = {
        key: _cat(str(key), [batch[key] for batch in present], shared_offsets)
        for key in first.keys()  # noqa: SIM118
    }
    return unchecked(values, sum(batch.batch_size[0] for batch in present), first.device)


def cat_columns(tables: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the rows of all columns. Raises: DataProtoError when keys or trailing shapes
    differ."""
    first = tables[0]
    for part, table in enumerate(tables):
        if table.keys() != first.keys():
            raise DataProtoError(
                f"concat: columns differ: {sorted(first)} and, in part {part}, {sorted(table)}"
            )
        for key, column in table.items():
            if column.shape[1:] != first[key].shape[1:]:
                raise DataProtoError(
                    f"concat: {key!r} differs: {describe(first[key])} and {describe(column)}"
                )
    return {key: np.concatenate([table[key] for table in tables]) for key in first}


def _cat(key: str, values: Sequence[Value], shared_offsets: dict[tuple[int, ...], Tensor]) -> Value:
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) < len(values):
        return TensorDict.cat(list(values))
    if any(tensor.is_nested for tensor in tensors):
        if not all(tensor.is_nested for tensor in tensors):
            kinds = [describe(tensor) for tensor in tensors]
            raise DataProtoError(f"concat: {key!r} differs: jagged in some parts only: {kinds}")
        return jagged.concatenated(tensors, shared_offsets)
    first = tensors[0]
    for tensor in tensors:
        if tensor.shape[1:] != first.shape[1:]:
            raise DataProtoError(
                f"concat: {key!r} differs: {describe(first)} and {describe(tensor)}"
            )
    return torch.cat(tensors)
