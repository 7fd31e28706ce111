"""A rollout as a tree: prompts, several rewrites of each, several pictures of each rewrite; each
generation is one batch and one track.

Every row has its own `id` and the id of its `parent`, the row of the previous generation from which
it was made (in the first track, the prompt's id). Rows are matched by these ids, never by position,
so the tree survives shuffling, sharding and padding, and may be uneven because failed rows drop
out. Legend: P parents, C children, B rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from rl_core.data_proto import DataProto, DataProtoError
from schemas.sections.tracks import Propagation

ID, PARENT = "id", "parent"
"""Columns with a row's id and its parent's id."""
CHILDLESS = "none of its children has a score"
"""Error of a parent whose children have no score."""


def lineage(parents: Sequence[str]) -> DataProto:
    """Return the columns `id` and `parent` of new rows; an id is the parent's id with the child's
    number."""
    seen: Counter[str] = Counter()
    ids = []
    for parent in parents:
        ids.append(f"{parent}/{seen[parent]}")
        seen[parent] += 1
    return DataProto.from_dict(non_tensors={ID: ids, PARENT: list(parents)})


def propagate(
    ids_P: Sequence[str],
    parents_C: Sequence[str],
    rewards_C: Tensor,
    failed_C: Tensor,
    how: Propagation = Propagation.MEAN,
) -> tuple[Tensor, Tensor]:
    """Compute the rewards of parents from those of their children.

    Args: parents_C: [C] the parent of each child, in any order. rewards_C: [C]. failed_C: [C], True
    for children without a score, which do not count. Returns: rewards [P], 0 for a parent without
    scored children; and [P], True for such parents. Raises: DataProtoError on an id used twice, or
    a child whose parent is missing.
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
