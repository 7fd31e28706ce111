"""The configuration classes of the train stack, under the names the train stack is known by."""

from schemas.recipe import FSDPConfig, LoraConfig, LrSchedulerConfig, OptimizerConfig

__all__ = ["FSDPConfig", "LoraConfig", "LrSchedulerConfig", "OptimizerConfig"]
