"""The recipe's blocks `optimizer`: of the policy, of a critic, of the second model of a tree."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from schemas.sections.section import Section

Decay = Annotated[float, Field(ge=0, lt=1)]
"""Decay of a moving average."""


class OptimizerKind(StrEnum):
    """Rule that turns gradients into updates."""

    ADAMW = "adamw"
    """AdamW (arXiv 1711.05101) on all weights."""
    ADAMW_8BIT = "adamw_8bit"
    """AdamW whose two running means are stored in 8 bits (arXiv 2110.02861), with the extra
    `bitsandbytes`."""
    MUON = "muon"
    """Muon on the matrices inside the blocks, each update scaled to the size of AdamW's (arXiv
    2502.16982), so that learning rates tuned for AdamW stay; AdamW on all other weights."""


class OptimizerConfig(Section):
    """Settings of the optimizer."""

    name: OptimizerKind = OptimizerKind.ADAMW
    """Rule that turns gradients into updates."""
    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: float = Field(default=1e-8, gt=0, le=1)
    """Constant added to the denominator of AdamW's update."""
    weight_decay: float = Field(default=0.0, ge=0, le=100)
    """Decoupled weight decay."""
    momentum: Decay = 0.95
    """Muon's decay rate of the running mean of gradients."""

    @model_validator(mode="after")
    def _momentum_has_an_effect(self) -> "OptimizerConfig":
        default = type(self).model_fields["momentum"].default
        if self.name is not OptimizerKind.MUON and self.momentum != default:
            raise ValueError(
                f"momentum is Muon's: set name: muon, or leave it out ({self.name} has betas)"
            )
        return self


ADDED = ("name", "momentum")
"""Keys that came after the first runs were recorded."""
PLACES = (("optimizer",), ("value_model", "optimizer"), ("tracks", "images", "optimizer"))
"""Keys under which a recipe has an optimizer."""


def without_default_optimizer(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's values without the newer settings of its optimizers at their default.

    A recipe of AdamW thereby has the identity that it had before there was another optimizer.
    """
    changed = dict(values)
    for place in PLACES:
        changed = _without_added(changed, place)
    return changed


def _without_added(values: Mapping[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    """Return values without the added keys at their default in the block at a place."""
    if not place:
        defaults = OptimizerConfig().model_dump(mode="json")
        return {
            key: value
            for key, value in values.items()
            if key not in ADDED or value != defaults[key]
        }
    key, *below = place
    block = values.get(key)
    if not isinstance(block, Mapping):
        return dict(values)
    return dict(values) | {key: _without_added(block, tuple(below))}
