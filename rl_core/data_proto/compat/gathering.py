"""The rows of all ranks, on every rank."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.distributed as dist
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.merge import cat_columns
from rl_core.data_proto.proto import DataProto

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
        values = {}
        for key, value in sorted(data.batch.items()):
            values[key] = _gathered(value, process_group, known_offsets)
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
    counts = []
    for _ in range(dist.get_world_size(group)):
        counts.append(torch.zeros(1, dtype=torch.long, device=device))
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
    tables = []
    for one, count in zip(received, rows, strict=True):
        tables.append(one.view(dense.dtype).view(max(rows), width)[:count])
    return torch.cat(tables).view(sum(rows), *dense.shape[1:]).to(dense.device)


def _collective_device(group: dist.ProcessGroup | None) -> torch.device:
    backend = dist.get_backend(group)
    if "nccl" in backend:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
