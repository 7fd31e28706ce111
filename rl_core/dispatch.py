"""How a call on a handle reaches the ranks, and how their answers become one.

A worker method says with `@dispatch(...)` how it is called; undecorated methods are `ALL`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from rl_core.data_proto import DataProto, DataProtoError

F = TypeVar("F", bound=Callable[..., Any])


class Dispatch(StrEnum):
    """Ways of calling the ranks of one placement block."""

    ALL = "all"
    """The same arguments everywhere; the answers come back as a list in rank order."""
    SHARD = "shard"
    """Every DataProto argument is cut into equal consecutive shards; DataProto answers are joined again."""
    RANK_ZERO = "rank_zero"
    """Only rank 0 is called; for work that is not collective and whose result is the same everywhere."""


def dispatch(mode: Dispatch) -> Callable[[F], F]:
    """Mark how a worker method is called from the driver."""

    def mark(method: F) -> F:
        method.__dispatch__ = mode  # type: ignore[attr-defined]
        return method

    return mark


def mode_of(cls: type, method: str) -> Dispatch:
    """The dispatch mode of a method. Raises: AttributeError when the class has no such method."""
    return getattr(getattr(cls, method), "__dispatch__", Dispatch.ALL)


def cut(mode: Dispatch, args: tuple[Any, ...], kwargs: dict[str, Any], world_size: int) -> list[tuple[Any, Any]]:
    """The arguments of each called rank."""
    if mode is Dispatch.RANK_ZERO:
        return [(args, kwargs)]
    if mode is Dispatch.ALL:
        return [(args, kwargs)] * world_size
    shards = [_shards(value, world_size) for value in args]
    named = {key: _shards(value, world_size) for key, value in kwargs.items()}
    return [
        (tuple(parts[rank] for parts in shards), {key: parts[rank] for key, parts in named.items()})
        for rank in range(world_size)
    ]


def join(mode: Dispatch, answers: Sequence[Any]) -> Any:
    """One answer out of those of the called ranks."""
    if mode is Dispatch.RANK_ZERO:
        return answers[0]
    if mode is Dispatch.SHARD and isinstance(answers[0], DataProto):
        return DataProto.concat(list(answers))
    return list(answers)


def _shards(value: Any, world_size: int) -> list[Any]:
    if not isinstance(value, DataProto):
        return [value] * world_size
    if len(value) % world_size:
        raise DataProtoError(f"a batch of {len(value)} rows cannot be cut for {world_size} ranks")
    return value.chunk(world_size)
