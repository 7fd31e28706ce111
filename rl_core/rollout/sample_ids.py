"""Names of the rows of a rollout: rows of a group share a `group_id`, each row has a `sample_id`.

A group is the set of rows whose rewards are compared: the samples of one prompt, or in a tree those
that `Track.siblings_share` says. Its id is the `uid` of what was sampled, so the id of a row is
`prompt:<uid>:sample:<number>` in every domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

if TYPE_CHECKING:
    from rl_core.data_proto import DataProto

GROUP: Final = "group_id"
SAMPLE: Final = "sample_id"
"""Object columns with the names of a row's group and of the row."""


class HasColumns(Protocol):
    """A batch, here or by reference."""

    @property
    def non_tensor_batch(self) -> Mapping[str, np.ndarray]:
        """The object columns."""
        ...


def sample_id(group_id: str, number: int) -> str:
    """Return the name of a sample. Args: number: of the sample in its group, from 0."""
    return f"prompt:{group_id}:sample:{number}"


def group_ids(uids: Sequence[str], attempt: int = 0) -> list[str]:
    """Return the group id of each prompt of a batch, no id twice.

    Args: attempt: number of the rollout in its step; a later one may sample a prompt again.
    """
    seen: Counter[str] = Counter()
    ids = []
    for uid in uids:
        again = f"~{seen[uid]}" if seen[uid] else ""
        ids.append(f"{uid}{f'+{attempt}' if attempt else ''}{again}")
        seen[uid] += 1
    return ids


def groups_of(prompts: DataProto) -> list[str]:
    """Return the group id of each prompt of a batch: its column, or else the items' uids."""
    columns = prompts.non_tensor_batch
    if GROUP in columns:
        return columns[GROUP].tolist()
    return group_ids([item["uid"] for item in columns["item"]])


def id_columns(group_ids_B: Sequence[str]) -> dict[str, list[str]]:
    """Return the columns `group_id` and `sample_id` of rows with these groups; siblings are
    numbered in order."""
    seen: Counter[str] = Counter()
    samples = []
    for group in group_ids_B:
        samples.append(sample_id(group, seen[group]))
        seen[group] += 1
    return {GROUP: list(group_ids_B), SAMPLE: samples}


def group_columns(group_ids_P: Sequence[str], group_size: int) -> dict[str, list[str]]:
    """Return the columns of the samples of some prompts, group by group."""
    return id_columns([group for group in group_ids_P for _ in range(group_size)])


def named_error(rollout: HasColumns, row: int, reason: str | None = None) -> str:
    """Return a row's error with the name of its sample, or its number if rows have no names.

    Args: reason: unset means the column `error`.
    """
    columns = rollout.non_tensor_batch
    name = columns[SAMPLE][row] if SAMPLE in columns else f"row {row}"
    return f"{name}: {columns['error'][row] if reason is None else reason}"
