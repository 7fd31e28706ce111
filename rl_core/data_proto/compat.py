"""Functions of verl's DataProto module, under the names that code written for verl imports.

Padding to divisors, folding of rows to groups, collation of single rows, gathering of all ranks'
rows, and futures of batches.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.columns import column_of_rows, copied, list_of_dict_to_dict_of_list
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.merge import cat_columns
from rl_core.data_proto.proto import DataProto, DataProtoItem

Proto = TypeVar("Proto", bound=DataProto)
Column = TypeVar("Column", Tensor, np.ndarray)
logger = logging.getLogger(__name__)


def pad_dataproto_to_divisor(data: Proto, size_divisor: int) -> tuple[Proto, int]:
    """Append the first rows, repeatedly, until `size_divisor` divides the batch; return it and the
    number of appended rows.

    A batch without rows has nothing to repeat and stays unchanged. Raises: DataProtoError for a
    divisor below one.
    """
    if not isinstance(data, DataProto):
        raise DataProtoError(f"only a DataProto can be padded, not a {type(data).__name__}")
    if size_divisor < 1:
        raise DataProtoError(f"the divisor must be at least 1, not {size_divisor}")
    if not len(data):
        logger.warning("a batch without rows cannot be padded to a multiple of %d", size_divisor)
        return data, 0
    pad_size = -len(data) % size_divisor
    return (
        (data.select_idxs(np.arange(len(data) + pad_size) % len(data)), pad_size)
        if pad_size
        else (data, 0)
    )


def unpad_dataproto(data: Proto, pad_size: int) -> Proto:
    """Return the batch without its last `pad_size` rows. Raises: DataProtoError when it has
    fewer."""
    if not 0 <= pad_size <= len(data):
        raise DataProtoError(f"cannot take {pad_size} padding rows off {len(data)} rows")
    return data.slice(0, len(data) - pad_size) if pad_size else data


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
    columns = {
        key: _reshape(key, column, leading, replaced)
        for key, column in data.non_tensor_batch.items()
    }
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
        values = {key: _stacked(rows, key in ragged, shared_offsets) for key, rows in table.items()}
        batch = TensorDict(values, batch_size=[len(x)])
    columns = list_of_dict_to_dict_of_list([item.non_tensor_batch for item in x])
    return DataProto(batch, {key: column_of_rows(rows) for key, rows in columns.items()})


def _stacked(
    rows: list[Tensor], ragged: bool, shared_offsets: dict[tuple[int, ...], Tensor]
) -> Tensor:
    lengths = (
        tuple(len(row) for row in rows) if isinstance(rows[0], Tensor) and rows[0].dim() else ()
    )
    if not ragged and len(set(lengths)) <= 1:
        return torch.stack(rows)
    if lengths not in shared_offsets:
        shared_offsets[lengths] = jagged.offsets_of(torch.tensor(lengths, device=rows[0].device))
    return jagged.join(torch.cat(rows), shared_offsets[lengths])


Header = dict[str, tuple[str, torch.dtype, list[int]]]
"""Kind (dense or jagged), dtype and trailing shape of each tensor column."""
Gathered = tuple[Header | None, int, dict[str, np.ndarray]]
"""Description of a rank's part: its tensor columns, number of rows, and the other columns."""


def all_gather_data_proto(data: DataProto, process_group: dist.ProcessGroup | None = None) -> None:
    """Replace the rows of `data`, in place, by those of all ranks in rank order. Collective.

    Ranks may have different numbers of rows, and jagged rows of any length. `meta_info` stays each
    rank's own. Tensors are returned on the device they were on. Raises: DataProtoError, on every
    rank, when the ranks' columns differ.
    """
    mine = _header(data)
    answers: list[Gathered | None] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(answers, (mine, len(data), data.non_tensor_batch), group=process_group)
    gathered = [answer for answer in answers if answer is not None]
    for rank, (header, _, columns) in enumerate(gathered):
        if header != gathered[0][0] or columns.keys() != gathered[0][2].keys():
            raise DataProtoError(
                f"all_gather: rank 0 has {gathered[0][0]} and {sorted(gathered[0][2])}, "
                f"rank {rank} has {header} and {sorted(columns)}"
            )
    data.non_tensor_batch = cat_columns([columns for _, _, columns in gathered])
    if data.batch is not None:
        known_offsets: list[Tensor] = []
        values = {
            key: _gathered(value, process_group, known_offsets)
            for key, value in sorted(data.batch.items())
        }
        num_rows = sum(rows for _, rows, _ in gathered)
        columns = {key: values[key] for key in data.batch.keys()}  # noqa: SIM118
        data.batch = TensorDict(columns, [num_rows], device=data.batch.device)


def _header(data: DataProto) -> Header | None:
    if data.batch is None:
        return None
    header: Header = {}
    for key, value in data.batch.items():
        if not isinstance(value, Tensor):
            raise DataProtoError(
                f"all_gather: {key!r} is a {type(value).__name__}; only tensors can be gathered"
            )
        dense = jagged.parts(value)[0] if value.is_nested else value
        header[str(key)] = (
            "jagged" if value.is_nested else "dense",
            value.dtype,
            list(dense.shape[1:]),
        )
    return header


def _gathered(
    value: Tensor, group: dist.ProcessGroup | None, known_offsets: list[Tensor]
) -> Tensor:
    if not value.is_nested:
        return _rows_of_all(value, group)
    values, offsets = jagged.parts(value)
    joined = jagged.offsets_of(_rows_of_all(offsets.diff(), group))
    # Whether columns shared their offsets may differ by rank; whether the joined ones are equal
    # does not.
    shared = next((one for one in known_offsets if torch.equal(one, joined)), joined)
    known_offsets.append(shared)
    return jagged.join(_rows_of_all(values, group), shared)


def _rows_of_all(dense: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return [sum of N over ranks, ...]; ranks are padded to the longest, because a collective
    moves equal shapes."""
    device = _collective_device(group)
    counts = [
        torch.zeros(1, dtype=torch.long, device=device) for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather(counts, torch.tensor([dense.shape[0]], device=device), group=group)
    rows = [int(count) for count in counts]
    # As bytes, because not every backend carries every dtype.
    width = math.prod(dense.shape[1:])
    padded = torch.zeros(max(rows), width, dtype=dense.dtype, device=device)
    padded[: dense.shape[0]] = dense.detach().reshape(dense.shape[0], width).to(device)
    flat = padded.view(-1).view(torch.uint8)
    received = [torch.empty_like(flat) for _ in rows]
    if flat.numel():
        dist.all_gather(received, flat, group=group)
    tables = [
        one.view(dense.dtype).view(max(rows), width)[:count]
        for one, count in zip(received, rows, strict=True)
    ]
    return torch.cat(tables).view(sum(rows), *dense.shape[1:]).to(dense.device)


def _collective_device(group: dist.ProcessGroup | None) -> torch.device:
    backend = dist.get_backend(group)
    return (
        torch.device("cuda", torch.cuda.current_device())
        if "nccl" in backend
        else torch.device("cpu")
    )


@runtime_checkable
class Future(Protocol):
    """A future of `concurrent.futures`."""

    def result(self) -> object:
        """Wait for the answer."""
        ...


class ObjectReference(Protocol):
    """A future of Ray."""

    def future(self) -> Future:
        """The same for `concurrent.futures`."""
        ...


@dataclass
class DataProtoFuture:
    """Answers of several workers, joined by `collect_fn` and cut by `dispatch_fn` where `get` is
    called.

    `futures` are Ray object references or `concurrent.futures.Future`s. The driver passes it on
    without fetching.
    """

    collect_fn: Callable[[list[DataProto]], DataProto]
    futures: list[Future | ObjectReference]
    dispatch_fn: Callable[[DataProto], DataProto] | None = None

    @staticmethod
    def concat(data: Sequence[Future | ObjectReference]) -> DataProtoFuture:
        """Return the rows of all answers, in order."""
        return DataProtoFuture(collect_fn=DataProto.concat, futures=list(data))

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """Return futures of equal consecutive parts."""
        return [
            DataProtoFuture(
                self.collect_fn, self.futures, partial(_chunk, index=index, chunks=chunks)
            )
            for index in range(chunks)
        ]

    def get(self) -> DataProto:
        """Wait and fetch. Raises: the error of a worker, or DataProtoError for an answer that is
        not a DataProto."""
        waiting = [
            future if isinstance(future, Future) else future.future() for future in self.futures
        ]
        answers: list[DataProto] = []
        for number, future in enumerate(waiting):
            answer = future.result()
            if not isinstance(answer, DataProto):
                raise DataProtoError(
                    f"answer {number} is a {type(answer).__name__}, not a DataProto"
                )
            answers.append(answer)
        whole = self.collect_fn(answers)
        return whole if self.dispatch_fn is None else self.dispatch_fn(whole)


def _chunk(whole: DataProto, index: int, chunks: int) -> DataProto:
    return whole.chunk(chunks)[index]
