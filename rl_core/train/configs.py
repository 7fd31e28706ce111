"""Configuration classes of the train stack, re-exported for users of the stack."""

from rl_core.ranks.rank_info import TrainTopology
from schemas.recipe import (
    EmaFullConfig,
    EmaLoraConfig,
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    OptimizerConfig,
)

__all__ = [
    "EmaFullConfig",
    "EmaLoraConfig",
    "FSDPConfig",
    "LoraConfig",
    "LrSchedulerConfig",
    "OptimizerConfig",
    "TrainTopology",
]
