"""A recipe's `sde` block: the kernels of the steps, and the selection of stochastic steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from schemas.sections.section import Section


class Kernel(StrEnum):
    """Kernel of a step from sigma to the next level."""

    FLOW = "flow"
    """SDE of Flow-GRPO: noise eta sqrt(sigma / (1 - sigma)); `flow_step`."""
    DANCE = "dance"
    """SDE of DanceGRPO: constant noise eta; `dance_step`."""
    CPS = "cps"
    """Coefficients-preserving sampling, whose noise level follows the schedule; `cps_step`."""
    DPM2 = "dpm2"
    """Second-order DPM-Solver++, deterministic; `dpm2_step`."""
    EULER = "euler"
    """First order, deterministic; `euler_step`."""

    @property
    def is_stochastic(self) -> bool:
        """True if a step has a log-probability."""
        return self in (Kernel.FLOW, Kernel.DANCE, Kernel.CPS)


class StepsKind(StrEnum):
    """Selection of the stochastic steps, which are the actions."""

    ALL = "all"
    """Every step."""
    LIST = "list"
    """The steps in `indices`."""
    RANDOM = "random"
    """`size` random steps, drawn again for each rollout."""
    WINDOW = "window"
    """`size` consecutive steps that slide from noise to image as training goes on (MixGRPO)."""


class StepsConfig(Section):
    """Selection of the stochastic steps."""

    kind: StepsKind = StepsKind.ALL
    """Rule of the selection."""
    indices: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """With `kind: list`: positions of the steps; 0 is the step that starts at pure noise."""
    size: int = Field(default=4, ge=1)
    """With `kind: random` and `kind: window`: number of stochastic steps."""
    stride: int = Field(default=1, ge=1)
    """With `kind: window`: number of steps that the window moves at a time."""
    every: int = Field(default=25, ge=1)
    """With `kind: window`: number of rollouts between moves."""

    @model_validator(mode="after")
    def _indices_fit(self) -> StepsConfig:
        if (self.kind is StepsKind.LIST) != bool(self.indices):
            raise ValueError("sde.steps.indices belongs to sde.steps.kind: list, which needs it")
        return self


class SdeConfig(Section):
    """SDE of a diffusion policy: its kernels and noise."""

    kernel: Kernel = Kernel.FLOW
    """Kernel of the stochastic steps."""
    eta: float = Field(default=0.7, gt=0)
    """Noise level of the kernel."""
    ode: Kernel = Kernel.EULER
    """Kernel of the deterministic steps."""
    steps: StepsConfig = Field(default_factory=StepsConfig)
    """Selection of the stochastic steps."""

    @model_validator(mode="after")
    def _kernels_fit(self) -> SdeConfig:
        if not self.kernel.is_stochastic:
            raise ValueError(
                f"sde.kernel {self.kernel} has no log-probability; use flow, dance or cps"
            )
        if self.ode.is_stochastic:
            raise ValueError(f"sde.ode {self.ode} draws noise; use euler or dpm2")
        if self.kernel is Kernel.CPS and self.eta > 1:
            raise ValueError(
                f"sde.eta {self.eta} is an angle of more than 90 degrees for cps; use at most 1"
            )
        return self
