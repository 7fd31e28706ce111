"""The parts that all answers of the endpoint share: engine, model and its name."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from rl_core.data.prepare.chat_template import Message, Tools
from rl_core.envs.calls.form import CallForm
from rl_core.rollout.chat.text import Encoded
from rl_core.serving.api_errors import NOT_FOUND, ApiError
from rl_core.serving.engine import Engine
from rl_core.serving.schema import Asking
from rl_core.serving.served_model import KnownModel


@dataclass(frozen=True)
class Endpoint:
    """A model behind an engine, under a name."""

    engine: Engine
    model: KnownModel
    name: str
    form: CallForm | None
    """Form in which the model writes calls of tools; None if no form is known."""
    max_replies: int
    """Most replies to one request."""
    created: int

    def check_model(self, name: str) -> None:
        """Raises: ApiError when a request is for another model."""
        if name != self.name:
            raise ApiError(
                f"model: there is no {name!r:.200}; this server has {self.name!r}",
                "model",
                status=NOT_FOUND,
                code="model_not_found",
            )

    def of_model(self, name: str) -> Endpoint:
        """Return the endpoint of a model's name: this one, unless it stands for several models.

        Raises: ApiError when it stands for several, and none has that name.
        """
        return self

    def encode(self, messages: list[Message], tools: Tools) -> Encoded:
        """Return the tokens of a conversation, ending where the reply begins, and its pictures."""
        return self.model.chat.conversation(messages, tools)

    def answered(self, messages: list[Message], prompt: list[int], said: Message) -> None:
        """Take note of an answer to a chat. Args: messages, prompt: as they were read. said: the
        assistant's message."""

    def check(self, request: Asking) -> None:
        """Check a request before it is read. Raises: ApiError."""
        self.check_model(request.model)

    def listed(self) -> dict[str, object]:
        """Return the model's entry of `/v1/models`."""
        longest = self.model.longest
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "rl-train",
            "max_model_len": None if longest is None else longest.num_tokens,
        }


def answer_head(prefix: str, model: str) -> dict[str, object]:
    """Return the fields with which every answer begins."""
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
