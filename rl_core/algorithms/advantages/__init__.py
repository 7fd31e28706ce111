"""Advantage estimators, one per file: how much better a row, or an action, did than expected."""

from rl_core.algorithms.advantages.base import (
    AdvantageEstimator,
    AdvantageInputs,
    RowEstimator,
    RowNumbers,
    advantage_estimators,
    over_actions,
)
from rl_core.algorithms.advantages.groups import Groups, group_ids
from rl_core.algorithms.advantages.scaling import ScaledConfig, StdScope, whiten

__all__ = [
    "AdvantageEstimator",
    "AdvantageInputs",
    "Groups",
    "RowEstimator",
    "RowNumbers",
    "ScaledConfig",
    "StdScope",
    "advantage_estimators",
    "group_ids",
    "over_actions",
    "whiten",
]
