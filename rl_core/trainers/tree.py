"""A rollout as a tree: x prompts, x n rewrites of them, x n m pictures of those; one batch, a
track, per generation.

Every row has an `id` of its own and the id of its `parent`, the row of the generation before that
it was made from (in the first track, the prompt's id). Relations are looked up by these ids, never
by position, so they survive shuffling, sharding and padding, and trees may be uneven: rows that
failed drop out. Legend: P parents, C children, B rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from rl_core.data_proto import DataProto, DataProtoError
from schemas.tracks import Propagation

ID, PARENT = "id", "parent"
"""Columns of a track's lineage."""
CHILDLESS = "none of its children has a score"
"""Why a parent is without a verdict."""


def lineage(parents: Sequence[str]) -> DataProto:
    """The columns `id` and `parent` of new rows: an id is the parent's with the row's number."""
    seen: Counter[str] = Counter()
    ids = []
    for parent in parents:
        ids.append(f"{parent}/{seen[parent]}")
        seen[parent] += 1
    return DataProto.from_dict(non_tensors={ID: ids, PARENT: list(parents)})


def sibling_groups(parents: Sequence[str]) -> Tensor:
    """[B] integers, equal for rows of one parent, numbered in the order of first appearance."""
    numbers: dict[str, int] = {}
    return torch.tensor(
        [numbers.setdefault(parent, len(numbers)) for parent in parents], dtype=torch.long
    )


def propagate(
    ids_P: Sequence[str],
    parents_C: Sequence[str],
    rewards_C: Tensor,
    failed_C: Tensor,
    how: Propagation = Propagation.MEAN,
) -> tuple[Tensor, Tensor]:
    """What parents earn by their children.

    Args: parents_C: [C] the parent of each child, in any order. rewards_C: [C]. failed_C: [C]
    children without a score, which do not count.
    Returns: rewards [P], 0 where there are none; and [P] whether a parent is without a verdict,
    since no child of it has a score. Raises: DataProtoError on an id used twice, or a child whose
    parent is not here.
    """
    places = {name: place for place, name in enumerate(ids_P)}
    if len(places) != len(ids_P):
        twice = next(name for name, count in Counter(ids_P).items() if count > 1)
        raise DataProtoError(f"the id {twice!r} is that of several rows; ids differ within a track")
    if strangers := [parent for parent in parents_C if parent not in places]:
        raise DataProtoError(
            f"{len(strangers)} rows have a parent that is not in the track; first: {strangers[0]!r}"
        )
    earned: list[list[Tensor]] = [[] for _ in ids_P]
    for parent, reward, failed in zip(parents_C, rewards_C, failed_C.tolist(), strict=True):
        if not failed:
            earned[places[parent]].append(reward)
    rewards_P = torch.zeros(len(ids_P), dtype=rewards_C.dtype)
    for place, rewards in enumerate(earned):
        if rewards:
            children = torch.stack(rewards)
            rewards_P[place] = children.mean() if how is Propagation.MEAN else children.max()
    return rewards_P, torch.tensor([not rewards for rewards in earned])
