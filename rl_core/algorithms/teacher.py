"""The model whose distribution a policy learns to give: which one it is, and what it reads."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field, field_validator, model_validator

from schemas.sections.checks.numbers import Seconds
from schemas.sections.section import Section

REGISTERED = "models:/"
"""Beginning of the name of a registered version."""


class OwnWeights(StrEnum):
    """Weights of the trained model itself that teach it."""

    BASE = "base"
    """The weights before training."""
    AVERAGE = "average"
    """The moving average of the weights (`ema_lora`, or `ema_full` with `mirror`)."""


class ServerApi(StrEnum):
    """Way in which a server gives the log-probabilities of tokens that it is sent."""

    ECHO = "echo"
    """OpenAI's completions: `echo` with `logprobs`."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """vLLM's parameter `prompt_logprobs`, which also names the tokens' ids."""


class TeacherConfig(Section):
    """One teacher: a model folder, a registered version, a server, or the policy's own weights."""

    path: str | None = Field(default=None, pattern=r"\S")
    """Model as in `model.path`, or a registered version, `models:/NAME/VERSION` or
    `models:/NAME@champion`, which a run reads when it is opened."""
    url: str | None = Field(default=None, pattern=r"^https?://")
    """Address of a server with OpenAI's completions, such as `http://127.0.0.1:8000/v1`."""
    model: str | None = None
    """Name of the model on the server."""
    api: ServerApi = ServerApi.ECHO
    """Way in which the server gives log-probabilities."""
    request_timeout_s: Seconds = Field(default=120.0, gt=0)
    """Longest time for one request to the server, in seconds."""
    own: OwnWeights | None = None
    """Weights of the trained model that teach it, instead of another model."""
    hint: str | None = Field(default=None, pattern=r"\S")
    """Field of the row that the teacher alone reads, such as `reward_spec.ground_truth` or
    `extra_info.solution`; unset lets it read what the policy reads."""
    hint_text: str = "\n\nHint: {hint}"
    """Text with the hint that is put behind the last message of the teacher's prompt."""

    @model_validator(mode="after")
    def _is_one_model(self) -> TeacherConfig:
        given = []
        for name in ("path", "url", "own"):
            if getattr(self, name) is not None:
                given.append(name)
        if len(given) != 1:
            said = " and ".join(given) or "none of them"
            raise ValueError(f"a teacher is one of path, url or own; got {said}")
        if self.url is not None and self.model is None:
            raise ValueError("a teacher at a url also needs model, its name on the server")
        if self.url is None and self.model is not None:
            raise ValueError("model is the name on a server and goes with url; use path")
        return self

    @field_validator("hint_text")
    @classmethod
    def _holds_the_hint(cls, value: str) -> str:
        if "{hint}" not in value:
            raise ValueError("must contain {hint}, the place of the row's field")
        return value

    @property
    def name(self) -> str:
        """Name in messages: the path, the address, or which of the policy's weights."""
        return self.path or self.url or f"the policy's {self.own} weights"


def teacher_block(value: object) -> Any:
    """Return a teacher's block; a text alone is a path."""
    if isinstance(value, str):
        return {"path": value}
    return value
