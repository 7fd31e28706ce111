"""The KL to a reference model: in the loss or in the reward, with a fixed or an adaptive coefficient."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field, model_validator

from rl_core.algorithms.terms import KlKind
from schemas.section import Section


class KlPlace(StrEnum):
    """Where the KL takes effect."""

    LOSS = "loss"
    """A term of the loss, with its own gradient (GRPO)."""
    REWARD = "reward"
    """Taken from the reward of each action before the advantages (PPO, REINFORCE++)."""


class AdaptiveKlConfig(Section):
    """A coefficient that holds the KL near a target (arXiv 1909.08593 sec. 2.2)."""

    target: float = Field(gt=0)
    """The KL per action to hold."""
    horizon: float = Field(default=10_000, gt=0)
    """Rows after which a KL 20 % off the target has changed the coefficient by about 20 %."""


class KlConfig(Section):
    """A recipe's `kl` block."""

    coef: float = Field(default=0.0, ge=0)
    """Weight of the KL; 0 needs no reference."""
    kind: KlKind = KlKind.K3
    """Which estimate of the KL."""
    straight_through: bool = False
    """Take the KL's gradient from k2, whatever its value is taken from."""
    place: KlPlace = KlPlace.LOSS
    """Where the KL takes effect."""
    adaptive: AdaptiveKlConfig | None = None
    """Change the coefficient while training; fixed when absent."""

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
    """The coefficient of the KL. Every rank that observes the same numbers holds the same coefficient."""

    CLIP = 0.2
    """The relative error of one update is cut off at this."""

    def __init__(self, coef: float, adaptive: AdaptiveKlConfig | None) -> None:
        self.coef, self.adaptive = coef, adaptive

    def update(self, kl: float, num_rows: int) -> None:
        """coef *= 1 + clip(kl / target - 1, -0.2, 0.2) num_rows / horizon; nothing for a fixed coefficient."""
        if self.adaptive is None:
            return
        error = min(max(kl / self.adaptive.target - 1.0, -self.CLIP), self.CLIP)
        self.coef *= 1.0 + error * num_rows / self.adaptive.horizon

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint must hold; empty for a fixed coefficient."""
        return {} if self.adaptive is None else {"kl_coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore `state_dict()`."""
        if self.adaptive is not None:
            self.coef = state["kl_coef"]
