"""Requests for replies, and the replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.models.decoding.token_choice import Support
from rl_core.models.media import PromptMedia
from schemas.sections.sampling import SamplingConfig


class StopReason(StrEnum):
    """Reason why a reply ended."""

    EOS = "eos"
    """The model ended it."""
    STOP = "stop"
    """A stop string of the recipe or the environment ended it, and is its end."""
    LENGTH = "length"
    """The limit on new tokens truncated it."""
    CONTEXT = "context"
    """Prompt, replies and observations together reached the context limit, within a reply or after
    it."""
    GIVEN_UP = "given_up"
    """Enough other groups had ended before it (`rollout.extra_prompts`)."""
    FAILED = "failed"
    """The environment failed or did not answer in time, so there is no reward."""

    @property
    def is_truncated(self) -> bool:
        """True if a limit on length ended it."""
        return self in (StopReason.LENGTH, StopReason.CONTEXT)


@dataclass(frozen=True)
class Request:
    """A context to continue."""

    token_ids: list[int]
    num_replies: int
    """Number of replies, which share the prefill."""
    room: int
    """Longest reply in tokens, in addition to the sampling's limit."""
    media: PromptMedia | None = None
    """Media of the context besides text."""
    stop: StopStrings | None = None
    """Strings that end a reply; None for none."""
    group: int | None = None
    """Group to which the replies belong, which ends when all of it has; None is a group of its
    own."""
    seed: int | None = None
    """Seed of the replies' own random numbers, which then do not depend on the other requests; None
    draws from the batch's."""
    begun: Reply | None = None
    """The only reply so far, which goes on; None begins them."""
    is_awaited: bool = False
    """True if the group is decoded to its end, however many others have ended."""


@dataclass
class Reply:
    """Tokens of one reply (an end-of-sequence token included), their log-probabilities, and the
    reason why it ended."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: StopReason
    support: Support | None = None
    """Tokens that could be drawn at each position, if they were recorded."""
    routing: np.ndarray | None = None
    """Experts of the tokens of prompt and reply, as in the column `ROUTING`, if recorded."""
    versions: list[int] = field(default_factory=list)
    """Number of the weights that drew each token, where a reply may be of several."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options. `temperature` 0 is greedy, with the log-probabilities of temperature 1."""

    max_new_tokens: int
    temperature: float
    eos_ids: tuple[int, ...]
    pad_id: int
    at_limit: StopReason = StopReason.LENGTH
    """Reason why a reply of `max_new_tokens` ended; `EOS` if all must have that length."""
    choice: SamplingConfig = field(default_factory=SamplingConfig)
    """Restriction of the tokens that may be drawn; the default allows all."""
    records_support: bool = False
    """True if replies say which tokens could be drawn, where not all could."""
    records_routing: bool = False
    """True if replies say which experts each token was sent to."""
    version: int | None = None
    """Number of the weights, for replies to say; None where a reply is of one version."""

    def limit(self, request: Request) -> int:
        """Return the limit of tokens of each reply to a request."""
        return min(request.room, self.max_new_tokens)

    def cut_off(self, limit: int) -> StopReason:
        """Return the reason why a reply of `limit` tokens ended that the model did not end."""
        return self.at_limit if limit == self.max_new_tokens else StopReason.LENGTH
