"""Groups beyond those of a step that a rollout did not finish: given up, or carried over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.data_proto import DataProto
from rl_core.rollout.episodes.episode import Episode
from rl_core.rollout.episodes.unfinished import Unfinished

BEGUN: Final = "begun"
"""Object column of prompts: what an earlier rollout left of each, an `Unfinished` or None."""
AWAITED: Final = "awaited"
"""Key of the prompts' `meta_info`; True if all groups are to be finished."""


def begun_of(prompts: DataProto) -> list[Unfinished | None]:
    """Return what an earlier rollout left of each prompt."""
    if BEGUN in prompts.non_tensor_batch:
        return list(prompts.non_tensor_batch[BEGUN])
    return [None] * len(prompts)


def unfinished_groups(
    given_up: Sequence[Episode], groups: Sequence[str], begun: Sequence[Unfinished | None]
) -> list[Unfinished]:
    """Return the groups that the next rollout goes on with.

    Args: given_up: their episodes, in order. groups: names of all groups. begun: what there was of
    them before.
    """
    by_group: dict[int, list[Episode]] = {}
    for episode in given_up:
        by_group.setdefault(episode.group, []).append(episode)
    found = []
    for number, episodes in by_group.items():
        before = begun[number]
        times = 1 if before is None else before.times + 1
        found.append(Unfinished(groups[number], times, tuple(one.begun for one in episodes)))
    return found


def counts(given_up: Sequence[Episode], *, carries: bool) -> dict[str, Metric]:
    """Return the numbers of groups, and of their tokens, that were given up or are carried over."""
    name = "carried" if carries else "given_up"
    num_groups = len({episode.group for episode in given_up})
    num_tokens = sum(sum(episode.mask) for episode in given_up)
    return {
        f"{name}_groups": Metric(MetricKind.SUM, num_groups, 1),
        f"{name}_tokens": Metric(MetricKind.SUM, num_tokens, 1),
    }
