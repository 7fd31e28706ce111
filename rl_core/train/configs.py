"""The configuration classes of the train stack, under the names the train stack is known by."""

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
