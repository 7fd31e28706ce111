"""Records of a run that are kept for people to read."""

import re

from pydantic import Field, field_validator, model_validator

from schemas.sections.section import Section

_SAMPLE = re.compile(r"sample:([1-9][0-9]{0,8})")


class TrackingConfig(Section):
    """Records of a run besides its metrics. They change nothing in the training, and are not part
    of the run's identity."""

    rollouts: str = "all"
    """Rows of every step that are kept in the run's folder, `rollouts/step-<step>.parquet`: `all`,
    `sample:N` (N rows of each track and step, whole groups first), or `none`."""

    traces: int = Field(default=0, ge=0)
    """Stored rows of each step, whole groups first, that MLflow gets as traces: a span for each
    reply, observation and reward."""

    @model_validator(mode="after")
    def _traces_are_of_stored_rows(self) -> "TrackingConfig":
        if self.traces and self.rollouts == "none":
            raise ValueError(
                f"tracking.traces: {self.traces} are traces of stored rows, and tracking.rollouts: "
                "none stores none; write all or sample:N there"
            )
        return self

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
