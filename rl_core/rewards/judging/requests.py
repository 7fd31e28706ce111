"""One question to a judge, its answer, and the contract of whatever answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Request:
    """A question to a judge."""

    messages: tuple[tuple[str, str], ...]
    """Role and text of each message."""
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    labels: tuple[str, ...] = ()
    """Words whose probabilities as the next token are asked for; empty asks for a text."""

    def digest(self, judge: str) -> str:
        """Return the name of its answer in the cache. Args: judge: identity of the judge."""
        text = json.dumps([judge, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


@dataclass(frozen=True)
class Answer:
    """Reply of a judge to one question."""

    text: str
    label_probs: Mapping[str, float] | None = None
    """Probability of each label as the verdict's token, if they were asked for."""
    input_tokens: int = 0
    output_tokens: int = 0

    def dumped(self) -> str:
        """Return the answer as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def loaded(cls, text: str) -> Answer:
        """Return the answer that `dumped` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class NoAnswer:
    """Marker in place of an answer."""

    reason: str
    final: bool = False
    """True if asking again would end the same."""


@dataclass
class Counts:
    """Numbers that are logged as metrics."""

    values: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, number: float = 1.0) -> None:
        """Add to a number."""
        self.values[name] = self.values.get(name, 0.0) + number

    def taken(self) -> dict[str, float]:
        """Return the numbers and begin again at 0."""
        values, self.values = self.values, dict.fromkeys(self.values, 0.0)
        return values


class Answering(Protocol):
    """A judge, wherever it runs."""

    identity: str
    """Name of the judge for the cache: another one gives other answers."""
    counts: Counts
    repeats: bool
    """True if an equal question gets an equal answer."""

    def answer(self, requests: Sequence[Request]) -> Sequence[Answer | NoAnswer]:
        """Answer requests in order. Raises: ServiceError when the judge refuses them all."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...
