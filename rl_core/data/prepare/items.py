"""Rows as training reads them: what every kind has, and the fields of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from rl_core.data.prepare.chat_template import Message

if TYPE_CHECKING:
    from typing_extensions import ReadOnly


class MediaRef(TypedDict):
    """A picture of a row."""

    modality: str
    role: str
    uri: str
    sha256: NotRequired[str]
    """Digest of a local file."""


class Item(TypedDict):
    """A row of any kind."""

    uid: str
    env_class: ReadOnly[NotRequired[str]]
    """Environment that answers the row, if one does."""
    env_extras: ReadOnly[NotRequired[dict[str, Any]]]
    """The row without its prompt and the name of its environment, for the environment."""
    metadata: NotRequired[dict[str, object]]
    """A media row's own values, for scorers."""
    media_refs: NotRequired[list[MediaRef]]
    reference: NotRequired[tuple[Sequence[float], Sequence[float]]]
    """Log-probabilities of the tokens of a pair's two answers before training."""


class PromptItem(Item):
    """A conversation to answer, or with answers to learn."""

    prompt: list[Message]
    env_extras: dict[str, Any]


class PlayedItem(PromptItem):
    """A conversation that an environment answers."""

    env_class: str


class PairItem(PromptItem):
    """A prompt with two answers, of which the first is preferred."""

    chosen: str
    rejected: str
    margin: NotRequired[float]
    """By how much the first answer is better."""


class MediaItem(Item):
    """A text to draw."""

    prompt: str
    asked: NotRequired[str]
    """The original prompt, where a model wrote `prompt`."""
    context_ids: NotRequired[list[int]]
    """Tokens that the picture is drawn from, where a unified model planned it."""
