"""What an algorithm is told of a rollout besides rewards, groups and mask."""

from __future__ import annotations

from typing import Any

import torch

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.trainers.length_penalty import GREEDY
from rl_core.trainers.rewards import earned_parts

MEASURED = {
    "values": "values_BT",
    "old_log_probs": "log_probs_BT",
    "ref_log_probs": "ref_log_probs_BT",
    "sum_squared_probs": "sum_squared_probs_BT",
    GREEDY: "greedy_rewards_B",
}
"""Columns of a rollout and the names of `RowMeasures` under which an algorithm gets them."""


def row_measures(rollout: DataProto | DataProtoRef, rows_B: torch.Tensor) -> dict[str, Any]:
    """The `RowMeasures` of these rows, as far as the rollout has them. Args: rows_B: [B] bool."""
    keys = (
        rollout.keys if isinstance(rollout, DataProtoRef) else set(map(str, rollout.batch.keys()))
    )  # type: ignore[union-attr]
    known = {name: rollout.tensor(key)[rows_B] for key, name in MEASURED.items() if key in keys}
    return earned_parts(rollout, rows_B) | known
