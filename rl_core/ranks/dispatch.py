"""Dispatch of a call on a handle to the ranks, and collection of their answers.

A worker method declares with `@distributed(dispatch=..., collect=..., execute=...)` how it is
called; an undecorated method is called with the same arguments on every rank and returns a list of
answers.

DataProtos, tensors, arrays, TensorDicts, lists and tuples are cut along their leading dimension;
everything else (numbers, strings, mappings, None, any object) and any `Broadcast(...)` reaches
every called rank whole. All arguments that are cut in one call must have the same number of rows.

Uneven batches: rows that do not divide are cut into equal shards of `ceil(rows / parts)`, the last
ones padded with copies of the last row, so that every rank runs the same number of forward passes.
Copies are counted in the shard's `meta_info["num_padding_rows"]` and their `response_mask` is zero:
losses, denominators and metrics count by that mask, so a copy has no weight. In joined answers the
copies are cut off again. A tensor or list is never padded: rows that do not divide are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import DataProto, DataProtoError
from rl_core.ranks.rank_info import TrainTopology

F = TypeVar("F", bound=Callable[..., object])

NUM_PADDING_ROWS = "num_padding_rows"
"""Key of a shard's `meta_info` with the number of copies at its end."""
MASK = "response_mask"


@runtime_checkable
class Shardable(Protocol):
    """A batch that cuts itself, such as one held by reference."""

    def __len__(self) -> int: ...

    def shard(self, num_parts: int, part: int) -> object:
        """Return one of `num_parts` shards of equal size, as `shard_of` does."""
        ...


Rows: TypeAlias = (
    DataProto | Shardable | Tensor | TensorDict | np.ndarray | list[object] | tuple[object, ...]
)
"""Arguments that a scatter cuts."""


class Dispatch(StrEnum):
    """Ranks of a placement block that are called, and the arguments they get."""

    BROADCAST = "broadcast"
    """Call every rank with the same arguments."""
    SCATTER = "scatter"
    """Call every rank with its own shard: one shard per rank, regardless of the topology."""
    DP_SCATTER = "dp_scatter"
    """Call every rank with one shard per data-parallel replica, the same for its tp, sp and pp
    siblings; one answer per replica."""
    DP_SCATTER_HEAD = "dp_scatter_head"
    """Call only the first rank of each replica, with the replica's shard; for work without
    collectives among siblings."""


class Collect(StrEnum):
    """Result that the caller gets."""

    ALL = "all"
    """A list with the answer of every answering rank, in rank order."""
    RANK_ZERO = "rank_zero"
    """The answer of rank 0, for results that are the same everywhere. Not allowed for metrics."""
    JOIN = "join"
    """One DataProto joined from the answers to a scatter: rows in shard order, copies cut off."""
    REDUCE = "reduce"
    """One metric, mapping of metrics, or object with a `merge` classmethod, reduced by its declared
    kind over replicas."""


class Execute(StrEnum):
    """Ranks that run the method."""

    ALL = "all"
    """All ranks that the dispatch mode addresses."""
    RANK_ZERO = "rank_zero"
    """Rank 0 alone, for work that is not collective and whose result is the same everywhere."""


@dataclass(frozen=True)
class CallSpec:
    """Declaration of how one method is called."""

    dispatch: Dispatch = Dispatch.BROADCAST
    collect: Collect = Collect.ALL
    execute: Execute = Execute.ALL

    def __post_init__(self) -> None:
        scatters = self.dispatch is not Dispatch.BROADCAST
        if self.execute is Execute.RANK_ZERO and (
            scatters or self.collect is not Collect.RANK_ZERO
        ):
            raise ValueError(
                "execute=RANK_ZERO has one rank: it goes with dispatch=BROADCAST and "
                "collect=RANK_ZERO"
            )
        if self.collect is Collect.JOIN and not scatters:
            raise ValueError(
                "collect=JOIN joins the answers to shards: it needs a dispatch that scatters"
            )


@dataclass(frozen=True)
class Broadcast:
    """An argument that reaches every called rank whole, even if it could be cut."""

    value: object


@dataclass(frozen=True)
class Cut:
    """The calls to ranks that make up one call on a handle."""

    calls: dict[int, tuple[tuple[object, ...], dict[str, object]]]
    """Arguments of each called rank."""
    answering: tuple[int, ...]
    """Called ranks whose answers count, in shard order."""
    num_rows: int | None
    """Number of rows that were cut; None if nothing was."""


def distributed(
    dispatch: Dispatch = Dispatch.BROADCAST,
    collect: Collect | None = None,
    execute: Execute = Execute.ALL,
) -> Callable[[F], F]:
    """Declare how a worker method is called from the driver. The default of `collect` follows
    `execute`."""
    if collect is None:
        collect = Collect.RANK_ZERO if execute is Execute.RANK_ZERO else Collect.ALL
    spec = CallSpec(dispatch, collect, execute)

    def mark(method: F) -> F:
        method.__call_spec__ = spec  # type: ignore[attr-defined]
        return method

    return mark


def spec_of(cls: type, method: str) -> CallSpec:
    """Return how a method is called. Raises: AttributeError when the class has no such method."""
    return getattr(getattr(cls, method), "__call_spec__", CallSpec())


def cut(
    spec: CallSpec, args: tuple[object, ...], kwargs: Mapping[str, object], topology: TrainTopology
) -> Cut:
    """Compute the arguments of each called rank. Raises: DataProtoError when something cannot be
    cut for the ranks."""
    everyone, heads = tuple(range(topology.world_size)), tuple(topology.head_ranks())
    per_replica = spec.collect is Collect.REDUCE and spec.dispatch is not Dispatch.SCATTER
    if spec.execute is Execute.RANK_ZERO:
        called, answering = (0,), (0,)
    elif spec.dispatch in (Dispatch.BROADCAST, Dispatch.SCATTER):
        called, answering = everyone, heads if per_replica else everyone
    else:
        called, answering = everyone if spec.dispatch is Dispatch.DP_SCATTER else heads, heads
    if spec.dispatch is Dispatch.BROADCAST:
        whole = tuple(map(_open, args)), {key: _open(value) for key, value in kwargs.items()}
        return Cut(dict.fromkeys(called, whole), answering, None)
    ranks_per_part = 1 if spec.dispatch is Dispatch.SCATTER else topology.model_size
    num_rows = _common_rows([*enumerate(args), *kwargs.items()])
    num_parts = topology.world_size // ranks_per_part
    positional = [_parts(value, num_parts) for value in args]
    named = {key: _parts(value, num_parts) for key, value in kwargs.items()}
    calls = {}
    for rank in called:
        part = rank // ranks_per_part
        calls[rank] = (
            tuple(parts[part] for parts in positional),
            {key: parts[part] for key, parts in named.items()},
        )
    return Cut(calls, answering, num_rows)


def is_cut(value: object) -> TypeGuard[Rows]:
    """Return True if a scatter cuts this argument."""
    return isinstance(
        value, DataProto | Shardable | Tensor | TensorDict | np.ndarray | list | tuple
    )


def shard_rows(num_rows: int, num_parts: int, part: int) -> tuple[int, int, int]:
    """Return first row, end row and number of copies of one shard. A shard beyond the last row has
    one row, and all are copies."""
    size = -(-num_rows // num_parts)
    start, stop = min(part * size, num_rows - 1), min((part + 1) * size, num_rows)
    return start, stop, size - max(0, num_rows - part * size) if stop == num_rows else 0


def fill_up(rows: DataProto, num_copies: int, num_rows: int) -> DataProto:
    """Pad `rows` to a shard of `num_rows` rows whose last `num_copies` copy the last row, with a
    zero `response_mask`."""
    shard = rows
    if num_copies:
        shard = rows[np.minimum(np.arange(num_rows), len(rows) - 1)]
        if shard.batch is not None and shard.batch.get(MASK, None) is not None:
            shard.batch[MASK] = _without_last(shard.batch[MASK], num_copies)
    return DataProto(
        shard.batch, shard.non_tensor_batch, {**shard.meta_info, NUM_PADDING_ROWS: num_copies}
    )


def shard_of(batch: DataProto, num_parts: int, part: int) -> DataProto:
    """Return one of `num_parts` shards of equal size; see the module's docstring. Raises:
    DataProtoError on an empty batch."""
    if not len(batch):
        raise DataProtoError(
            f"an empty batch cannot be cut for {num_parts} ranks; its columns have no rows"
        )
    start, stop, num_copies = shard_rows(len(batch), num_parts, part)
    return fill_up(batch[start:stop], num_copies, -(-len(batch) // num_parts))


def num_real_rows(shard: DataProto) -> int:
    """Return the number of rows of a shard that are not copies."""
    return len(shard) - shard.meta_info.get(NUM_PADDING_ROWS, 0)


def _without_last(mask: Tensor, num_rows: int) -> Tensor:
    if mask.is_nested:
        rows = list(mask.unbind())
        kept = rows[: len(rows) - num_rows] + [
            torch.zeros_like(row) for row in rows[len(rows) - num_rows :]
        ]
        return torch.nested.as_nested_tensor(kept, layout=torch.jagged)
    return mask.index_fill(0, torch.arange(len(mask) - num_rows, len(mask), device=mask.device), 0)


def _open(value: object) -> object:
    value = value.value if isinstance(value, Broadcast) else value
    if isinstance(value, Shardable):
        return value.shard(1, 0)
    return value


def _common_rows(arguments: list[tuple[int | str, object]]) -> int | None:
    rows = {}
    for name, value in arguments:
        if not is_cut(value):
            continue
        if isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
            raise DataProtoError(
                f"argument {name!r} has no leading dimension to cut; pass Broadcast(value) to "
                "send it"
            )
        rows[name] = len(value)
    if len(set(rows.values())) > 1:
        raise DataProtoError(
            f"arguments to be cut differ in rows: {rows}; pass Broadcast(value) for what is not cut"
        )
    return next(iter(rows.values()), None)


def _parts(value: object, num_parts: int) -> list[object]:
    if not is_cut(value):
        return [_open(value)] * num_parts
    if isinstance(value, DataProto):
        return [shard_of(value, num_parts, part) for part in range(num_parts)]
    if isinstance(value, Shardable):
        return [value.shard(num_parts, part) for part in range(num_parts)]
    if len(value) % num_parts:
        raise DataProtoError(
            f"a {type(value).__name__} of {len(value)} rows cannot be cut into {num_parts} equal "
            "shards; pass Broadcast(value) to send it whole"
        )
    size = len(value) // num_parts
    return [value[part * size : (part + 1) * size] for part in range(num_parts)]
