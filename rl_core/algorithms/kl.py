"""KL to a reference model: in the loss or in the reward, with a fixed or an adaptive
coefficient."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field, model_validator

from rl_core.algorithms.terms import KlKind
from schemas.sections.section import Section


class KlPlace(StrEnum):
    """Place where the KL takes effect."""

    LOSS = "loss"
    """A term of the loss, with its own gradient (GRPO)."""
    REWARD = "reward"
    """Subtracted from the reward of each action before the advantages (PPO, REINFORCE++)."""


class AdaptiveKlConfig(Section):
    """Coefficient that adapts to keep the KL near a target (arXiv 1909.08593 sec. 2.2)."""

    target: float = Field(gt=0)
    """Target of the KL per action."""
    horizon: float = Field(default=10_000, gt=0)
    """Number of rows after which a KL 20 % off the target has changed the coefficient by about 20
    %."""


class KlConfig(Section):
    """KL to the reference model."""

    coef: float = Field(default=0.0, ge=0)
    """Weight of the KL; 0 needs no reference."""
    kind: KlKind = KlKind.K3
    """Estimate of the KL."""
    straight_through: bool = False
    """Straight-through gradient: the KL's gradient is that of k2, whatever estimate its value
    is."""
    place: KlPlace = KlPlace.LOSS
    """Place where the KL takes effect."""
    adaptive: AdaptiveKlConfig | None = None
    """Adapt the coefficient in training; unset keeps it fixed."""

    @model_validator(mode="after")
    def _adapts_something(self) -> KlConfig:
        if self.adaptive is not None and self.coef == 0:
            raise ValueError("kl.adaptive needs a kl.coef to start from, greater than 0")
        if self.kind is KlKind.EXACT and self.straight_through:
            raise ValueError("kl.kind exact has its own gradient; leave kl.straight_through out")
        if self.kind is KlKind.EXACT and self.place is KlPlace.REWARD:
            raise ValueError("kl.kind exact is a term of the loss; set kl.place: loss")
        return self


class KlController:
    """Holder of the KL's coefficient. Every rank that observes the same numbers has the same
    coefficient."""

    CLIP = 0.2
    """Bound on the relative error of one update."""

    def __init__(self, coef: float, adaptive: AdaptiveKlConfig | None) -> None:
        self.coef, self.adaptive = coef, adaptive

    def update(self, kl: float, num_rows: int) -> None:
        """Update coef *= 1 + clip(kl / target - 1, -0.2, 0.2) num_rows / horizon; nothing for a
        fixed coefficient."""
        if self.adaptive is None:
            return
        error = min(max(kl / self.adaptive.target - 1.0, -self.CLIP), self.CLIP)
        self.coef *= 1.0 + error * num_rows / self.adaptive.horizon

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint; empty for a fixed coefficient."""
        if self.adaptive is None:
            return {}
        return {"kl_coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore `state_dict()`."""
        if self.adaptive is not None:
            self.coef = state["kl_coef"]
