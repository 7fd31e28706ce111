"""A language model to talk to from Python."""

from __future__ import annotations

from collections.abc import Sequence

from rl_core.demo.questions import Question
from rl_core.demo.speaker import Speaker
from rl_core.errors import ModelError
from rl_core.runs.evaluation import evaluation_recipe, find_candidate
from rl_core.runs.versions.served_weights import weights_of
from rl_core.runtime.home import Home
from schemas.domains import Page

Message = dict[str, str]
"""A message of a conversation: `{"role": "user", "content": "..."}`."""


class ChatModel:
    """A loaded language model."""

    def __init__(self, name: str, speaker: Speaker) -> None:
        self.name, self._speaker = name, speaker

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> str:
        """Return the model's reply.

        Args: messages: a user's message, or a conversation that ends with one. max_new_tokens:
        longest reply; unset is that of the recipe's evaluations. temperature: 0 is greedy.
        Raises: DataError when the conversation is longer than the model takes.
        """
        asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        longest = max_new_tokens or self._speaker.recipe.evaluation.max_new_tokens
        return self._speaker.answer(Question(list(asked), seed, temperature, longest)).text

    def __repr__(self) -> str:
        return f"<ChatModel {self.name}>"


def load(model: str, *, recipe: str = "text", device: str = "cpu") -> ChatModel:
    """Load a language model.

    Args: model: `models:/NAME@champion`, `models:/NAME/VERSION`, `RUN@ITERATION`, or as
    `model.path`. recipe: chat template and sampling of a model that is no version of a recipe of
    its own. device: `cpu`, `cuda`, `cuda:1`. Raises: StorageError, ModelError.
    """
    home = Home.default()
    home.activate()
    candidate = find_candidate(model, home)
    own = candidate.version is not None or candidate.iteration is not None
    found = evaluation_recipe(candidate, None if own else recipe, (), None, home)
    if found.domain.traits.page is not Page.CHAT:
        raise ModelError(f"{candidate.name} is of the domain {found.domain}, which has no chat")
    return ChatModel(candidate.name, Speaker(weights_of(candidate, home), found, device))
