"""Records of a run that are kept for people to read."""

import re
from enum import StrEnum

from pydantic import Field, field_validator, model_validator

from schemas.sections.section import Section

_SAMPLE = re.compile(r"sample:([1-9][0-9]{0,8})")


class Tracker(StrEnum):
    """A tracker that gets the metrics of a run next to MLflow."""

    WANDB = "wandb"
    """Weights & Biases; with `WANDB_MODE=offline` its records stay in the run's folder."""
    TENSORBOARD = "tensorboard"
    """Event files in the run's folder."""


class ProfileConfig(Section):
    """Steps whose rollout, training and weight sync are recorded by the torch profiler."""

    steps: list[int] = Field(min_length=1)
    """Numbers of the steps, from 1. Each rank gives a trace for Perfetto or `chrome://tracing`,
    kept in the run's folder and in MLflow. A recorded step takes a multiple of its usual time."""

    @field_validator("steps")
    @classmethod
    def _are_numbers_of_steps(cls, steps: list[int]) -> list[int]:
        for step in steps:
            if step < 1:
                raise ValueError(f"{step} is no step: steps are counted from 1")
        return sorted(set(steps))


class PrometheusConfig(Section):
    """Address at which Prometheus reads the gauges of a running training."""

    port: int = Field(ge=0, le=65535)
    """Port, answered while the run goes on; 0 takes a free one, which the log names."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Whoever reaches it reads the metrics without a password."""


class TrackingConfig(Section):
    """Records of a run besides its metrics. They change nothing in the training, and are not part
    of the run's identity."""

    rollouts: str = "all"
    """Rows of every step that are kept in the run's folder, `rollouts/step-<step>.parquet`: `all`,
    `sample:N` (N rows of each track and step, whole groups first), or `none`."""

    traces: int = Field(default=0, ge=0)
    """Stored rows of each step, whole groups first, that MLflow gets as traces: a span for each
    reply, observation and reward."""

    also: list[Tracker] = Field(default_factory=list)
    """Trackers that get the metrics and the recipe next to MLflow, under the same names. Each needs
    the extra of its name: `pip install 'rl-train[wandb]'`."""

    profile: ProfileConfig | None = None
    """Steps that the torch profiler records; unset records none."""

    prometheus: PrometheusConfig | None = None
    """Gauges of the running training for Prometheus; unset serves none."""

    @model_validator(mode="after")
    def _traces_are_of_stored_rows(self) -> "TrackingConfig":
        if self.traces and self.rollouts == "none":
            raise ValueError(
                f"tracking.traces: {self.traces} are traces of stored rows, and tracking.rollouts: "
                "none stores none; write all or sample:N there"
            )
        return self

    @field_validator("also")
    @classmethod
    def _each_is_named_once(cls, value: list[Tracker]) -> list[Tracker]:
        return list(dict.fromkeys(value))

    @field_validator("rollouts")
    @classmethod
    def _is_a_choice(cls, value: str) -> str:
        if value not in ("all", "none") and not _SAMPLE.fullmatch(value):
            raise ValueError(f"{value!r}: write all, none, or sample:N with N of 1 or more")
        return value

    @property
    def max_rollouts(self) -> int | None:
        """Rows of a track and step that are kept; None keeps all."""
        if self.rollouts == "all":
            return None
        found = _SAMPLE.fullmatch(self.rollouts)
        return int(found[1]) if found else 0
