"""Inputs of an algorithm besides rewards, groups and mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch

from rl_core.algorithms.base import RowMeasures, RowParts
from rl_core.data.prepare.items import Item
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.trainers.length_penalty import GREEDY
from rl_core.trainers.rewards import reward_parts
from rl_core.trainers.step_record import column_names
from rl_core.trainers.track import Learner

MEASURED = {
    "turn_rewards": "rewards_BT",
    "values": "values_BT",
    "old_log_probs": "log_probs_BT",
    "ref_log_probs": "ref_log_probs_BT",
    "sum_squared_probs": "sum_squared_probs_BT",
    "teacher_log_probs": "teacher_log_probs_BT",
    "teacher_entropy": "teacher_entropy_BT",
}
"""Columns of a rollout by action, and the names of `RowMeasures` under which an algorithm gets
them."""


def row_parts(rollout: DataProto | DataProtoRef, rows_B: torch.Tensor | slice) -> RowParts:
    """Return the `RowParts` of these rows, as far as the rollout has them. Args: rows_B: [B] bool,
    or a slice."""
    found: RowParts = {}
    if parts := reward_parts(rollout, rows_B):
        found["rewards_by_key"] = parts
    if GREEDY in column_names(rollout):
        found["greedy_rewards_B"] = rollout.tensor(GREEDY)[rows_B]
    return found


def row_measures(rollout: DataProto | DataProtoRef, rows_B: torch.Tensor | slice) -> RowMeasures:
    """Return the `RowMeasures` of these rows, as far as the rollout has them. Args: rows_B: [B]
    bool, or a slice."""
    keys, known = column_names(rollout), {}
    for key, name in MEASURED.items():
        if key in keys:
            known[name] = rollout.tensor(key)[rows_B]
    return cast(RowMeasures, {**row_parts(rollout, rows_B), **known})


def add_measures(
    learner: Learner, batch: DataProto | DataProtoRef, items: Mapping[str, Item]
) -> None:
    """Add the log-probabilities and values that the advantages need, in place. Args: items: prompts
    by uid."""
    if learner.teaching is not None:
        learner.teaching.add_to(batch, items)
    if learner.algorithm.measures_first:
        batch.union(learner.stack.measure(batch).fetch())
    if learner.critic is not None:
        batch.union(learner.critic.stack.values(batch).fetch())
