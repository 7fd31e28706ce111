"""A recipe's `sde` block: which kernel samples and scores, and on which steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from schemas.section import Section


class Kernel(StrEnum):
    """How one step leads from sigma to the next."""

    FLOW = "flow"
    """Flow-GRPO's SDE: noise eta sqrt(sigma / (1 - sigma)); `flow_step`."""
    DANCE = "dance"
    """DanceGRPO's SDE: constant noise eta; `dance_step`."""
    CPS = "cps"
    """Coefficients-preserving sampling: the noise level stays the schedule's; `cps_step`."""
    DPM2 = "dpm2"
    """Second-order DPM-Solver++, deterministic; `dpm2_step`."""
    EULER = "euler"
    """First order, deterministic; `euler_step`."""

    @property
    def is_stochastic(self) -> bool:
        """Whether a step has a log-probability."""
        return self in (Kernel.FLOW, Kernel.DANCE, Kernel.CPS)


class StepsKind(StrEnum):
    """Which steps are stochastic, and so are actions."""

    ALL = "all"
    """Every step."""
    LIST = "list"
    """Those in `indices`."""
    RANDOM = "random"
    """`size` steps, drawn anew for each rollout."""
    WINDOW = "window"
    """`size` neighbouring steps that slide from noise to image as training goes on (MixGRPO)."""


class StepsConfig(Section):
    """Which steps are stochastic."""

    kind: StepsKind = StepsKind.ALL
    """The rule."""
    indices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """For `list`: positions of steps, 0 being the one that starts at pure noise."""
    size: int = Field(default=4, ge=1)
    """For `random` and `window`: how many steps."""
    stride: int = Field(default=1, ge=1)
    """For `window`: how far it moves."""
    every: int = Field(default=25, ge=1)
    """For `window`: after how many rollouts it moves."""

    @model_validator(mode="after")
    def _indices_fit(self) -> StepsConfig:
        if (self.kind is StepsKind.LIST) != bool(self.indices):
            raise ValueError("sde.steps.indices belongs to sde.steps.kind: list, which needs it")
        return self


class SdeConfig(Section):
    """A recipe's `sde` block."""

    kernel: Kernel = Kernel.FLOW
    """The kernel of the stochastic steps."""
    eta: float = Field(default=0.7, gt=0)
    """The kernel's noise level."""
    ode: Kernel = Kernel.EULER
    """The kernel of the other steps."""
    steps: StepsConfig = Field(default_factory=StepsConfig)
    """Which steps are stochastic."""

    @model_validator(mode="after")
    def _kernels_fit(self) -> SdeConfig:
        if not self.kernel.is_stochastic:
            raise ValueError(f"sde.kernel {self.kernel} has no log-probability; use flow, dance or cps")
        if self.ode.is_stochastic:
            raise ValueError(f"sde.ode {self.ode} draws noise; use euler or dpm2")
        if self.kernel is Kernel.CPS and self.eta > 1:
            raise ValueError(f"sde.eta {self.eta} is an angle of more than 90 degrees for cps; use at most 1")
        return self
