"""One replica on several ranks plays as one: environment calls happen once, and all ranks decode
the same rows.

Tensor-parallel ranks decode together; the first of them runs the environments and tells the others
what to decode. Sequence-parallel ranks hold whole models while sampling, so each plays its own part
of the replica's prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import ProcessGroup

T = TypeVar("T")
R = TypeVar("R")


def part_of(rows: Sequence[T], group: ProcessGroup) -> list[T]:
    """Return the consecutive rows that this rank of the group plays; sizes differ by one at most,
    and some may be empty."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    bounds = [len(rows) * part // size for part in range(size + 1)]
    return list(rows[bounds[rank] : bounds[rank + 1]])


def collect_parts(part: list[T], group: ProcessGroup) -> list[T]:
    """Return all ranks' parts in order, on the group's first rank; empty elsewhere. Collective. The
    parts must pickle."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if size == 1:
        return part
    parts: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(part, parts, group=group, group_dst=0)
    return [row for one in parts or [] for row in one]


def play_together(
    group: ProcessGroup, work: Callable[..., R], play: Callable[[Callable[..., R]], list[T]]
) -> list[T]:
    """Run `play(work)` on the group's first rank, and every call that it makes of `work` on all
    ranks, with its arguments.

    Args: work: collective over the group; its arguments must pickle. Returns: the result of `play`;
    empty elsewhere.
    """
    if dist.get_world_size(group) == 1:
        return play(work)
    if dist.get_rank(group) > 0:
        while (arguments := _told(None, group)) is not None:
            work(*arguments)
        return []

    def everywhere(*arguments: object) -> R:
        return work(*_told(arguments, group))

    try:
        return play(everywhere)
    finally:
        _told(None, group)


def _told(arguments: tuple[Any, ...] | None, group: ProcessGroup) -> Any:
    """Return the arguments that the group's first rank broadcasts; None ends the play."""
    said = [arguments]
    dist.broadcast_object_list(said, group=group, group_src=0)
    return said[0]
