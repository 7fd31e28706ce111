"""What a model of the page is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """What one model is asked."""

    messages: list[dict[str, str]]
    """A conversation, the last message being the user's; of a drawing the last one counts."""
    seed: int
    temperature: float
    """0 is greedy; drawings take no notice of it."""
    max_new_tokens: int


@dataclass(frozen=True)
class Answer:
    """What it says."""

    text: str = ""
    image: bytes = b""
    """PNG."""
    is_cut: bool = False
    """The reply reached the limit on its length."""
