"""Questions to the models of the demo page, and their answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """Question to one model."""

    messages: list[dict[str, str]]
    """A conversation that ends with the user's message; drawing uses the last message only."""
    seed: int
    temperature: float
    """Sampling temperature, 0 for greedy decoding; not used for drawing."""
    max_new_tokens: int


@dataclass(frozen=True)
class Answer:
    """Answer of one model."""

    text: str = ""
    image: bytes = b""
    """PNG."""
    is_cut: bool = False
    """True if the reply reached the length limit."""
