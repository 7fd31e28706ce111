"""Reading of a recipe's `algorithm` block: a preset's defaults with the recipe's values on top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from pydantic import Field, model_validator

from rl_core.algorithms.advantages import advantage_estimators
from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.correction import CorrectionConfig
from rl_core.algorithms.critic import CriticConfig
from rl_core.algorithms.kl import KlConfig
from rl_core.algorithms.losses import policy_losses
from rl_core.algorithms.shaping import OverlongConfig

SHORTCUTS = ("clip_low", "clip_high")
"""Keys of the `loss` block that may also be set next to it: `algorithm.clip_high=0.28`."""


Block: TypeAlias = dict[str, Any]
"""A block of a recipe. Its values are of the types that the class it names declares, which checks
them."""


class PolicyGradientConfig(StageAlgorithm.Config):
    """The recipe's `algorithm` block without its name. Missing blocks and keys are taken from the
    preset."""

    preset: ClassVar[Block] = {}
    """Defaults of the blocks, in the form of a recipe."""

    advantage: Block = Field(default_factory=lambda: {"name": "grpo"})
    """Advantage estimator and its settings: `{name: grpo, norm_by_std: false}`."""
    loss: Block = Field(default_factory=lambda: {"name": "ppo_clip"})
    """Policy loss and its settings: `{name: ppo_clip, clip_high: 0.28}`."""
    clip_low: float | None = Field(default=None, ge=0)
    """Shortcut for `loss.clip_low`."""
    clip_high: float | None = Field(default=None, ge=0)
    """Shortcut for `loss.clip_high`."""
    kl: KlConfig = Field(default_factory=KlConfig)
    """KL to the reference model."""
    correction: CorrectionConfig | None = None
    """Weights of actions by the difference between trainer and rollout engine; unset turns them
    off."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    dynamic_sampling: bool = False
    """Replace groups whose rewards are all equal by new prompts (DAPO)."""
    max_extra_rollouts: int = Field(default=4, ge=0)
    """With `dynamic_sampling`: maximum number of additional rollouts of a step, after which it
    trains on what it has."""
    overlong: OverlongConfig = Field(default_factory=OverlongConfig)
    """Treatment of replies that reach the length limit."""
    critic: CriticConfig | None = None
    """Value loss, for advantages that need a critic."""

    @model_validator(mode="before")
    @classmethod
    def _over_preset(cls, values: object) -> object:
        if isinstance(values, Mapping):
            return over_preset(cls.preset, values)
        return values

    @model_validator(mode="after")
    def _blocks_exist(self) -> PolicyGradientConfig:
        for key in SHORTCUTS:
            if (
                getattr(self, key) is not None
                and key in self.loss
                and self.loss[key] != self.preset_loss.get(key)
            ):
                raise ValueError(
                    f"{key} is given twice: {getattr(self, key)} and loss.{key} {self.loss[key]}"
                )
        policy_losses.resolve(self.loss_block(), "algorithm.loss")
        estimator, _ = advantage_estimators.resolve(self.advantage, "algorithm.advantage")
        if self.critic is not None and not estimator.needs_critic:
            raise ValueError(
                f"a critic block is given, but the advantage {self.advantage} has no critic"
            )
        return self

    @property
    def preset_loss(self) -> Block:
        """The preset's `loss` block."""
        return self.preset.get("loss", {})

    def loss_block(self) -> Block:
        """Return the `loss` block with the shortcuts merged in."""
        short = {}
        for key in SHORTCUTS:
            if getattr(self, key) is not None:
                short[key] = getattr(self, key)
        return {**self.loss, **short}


def over_preset(preset: Mapping[str, object], given: Mapping[str, object]) -> Block:
    """Merge given values over the preset, block by block and key by key.

    A block that names another class than the preset's starts from that class's own defaults.
    """
    merged = {**preset, **given}
    for key, default in preset.items():
        block = given.get(key)
        if isinstance(default, Mapping) and isinstance(block, Mapping):
            merged[key] = dict(block) if _other_class(default, block) else {**default, **block}
    return merged


def _other_class(default: Mapping[str, object], block: Mapping[str, object]) -> bool:
    return block.get("target") is not None or block.get("name", default.get("name")) != default.get(
        "name"
    )
