"""Contract of what an endpoint needs of a model: tokens in, a stream of tokens out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rl_core.errors import RLTrainError
from rl_core.models.decoding.request import Sampling, StopReason
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.rollout.chat.text import Encoded

Likely = list[tuple[int, float]]
"""Most probable tokens with their log-probabilities, the most probable first."""


class EngineFull(RLTrainError):
    """The queue has as many requests as it may hold; a later attempt may succeed."""


class EngineFailed(RLTrainError):
    """Sampling failed for a reason that is not the request's."""


@dataclass(frozen=True)
class Asked:
    """Sampling of the replies to a prompt."""

    sampling: Sampling
    room: int
    """Most tokens of a reply, from the model's longest row."""
    seed: int = 0
    """Seed of the first reply; the next has the next seed, so that each can be repeated alone."""
    num_replies: int = 1
    num_likely: int = 0
    """Number of most probable tokens that come with each token."""
    stop: StopStrings | None = None


@dataclass(frozen=True)
class Token:
    """A sampled token."""

    index: int
    """Number of the reply."""
    token_id: int
    log_prob: float
    """Log-probability that it was sampled with; a greedy token's under temperature 1."""
    likely: Likely = field(default_factory=list)
    stop_reason: StopReason | None = None
    """Set on the last token of a reply."""


@dataclass(frozen=True)
class Scored:
    """A token of a prompt."""

    token_id: int
    log_prob: float | None
    """None for the first token, which follows nothing."""
    likely: Likely = field(default_factory=list)


class TokenStream(Protocol):
    """Tokens of the replies to one request, in the order in which they were sampled."""

    def __aiter__(self) -> AsyncIterator[Token]: ...

    def cancel(self) -> None:
        """Stop sampling; its rows leave the batch before the next token."""
        ...


class Engine(Protocol):
    """Samples replies for an endpoint."""

    def generate(self, prompt: Encoded, asked: Asked) -> TokenStream:
        """Put a request in the queue. Args: prompt: tokens, and the pictures among them. Raises:
        EngineFull when it is full."""
        ...

    async def score(self, prompt_token_ids: Sequence[int], num_likely: int) -> list[Scored]:
        """Return the log-probabilities of a prompt's tokens. Raises: EngineFull."""
        ...

    def close(self) -> None:
        """Stop, and end what is being sampled."""
        ...
