"""The recipe's `reward_service` block: what becomes of scores that fail, and of replies that were cut off."""

from enum import StrEnum

from pydantic import Field

from schemas.numbers import Seconds
from schemas.section import Section


class FailurePolicy(StrEnum):
    """What becomes of a row that a scorer could not score, after all tries. It is never scored 0."""

    DROP = "drop"
    """The row takes no part in the step; it is counted."""
    FAIL = "fail"
    """The step fails, with the reasons; the flow may try it again."""


class Truncation(StrEnum):
    """What the reward of a reply that a length limit cut off becomes."""

    KEEP = "keep"
    """As it is: the verdict on what was said."""
    ZERO = "zero"
    """0, whatever was said."""
    SOFT = "soft"
    """Less by a penalty that sets in before the limit and is whole at it (DAPO, arXiv 2503.14476 eq. 13)."""


class RewardServiceConfig(Section):
    """How rewards are gathered and shaped."""

    on_failure: FailurePolicy = FailurePolicy.DROP
    """What becomes of rows without a score."""
    max_tries: int = Field(default=3, ge=1)
    """How often a scorer is asked about a sample."""
    backoff_s: Seconds = Field(default=0.5, ge=0)
    """Pause before the second try; each further one is twice as long."""
    truncated: Truncation = Truncation.KEEP
    """What becomes of the reward of cut-off replies."""
    overlong_buffer: int = Field(default=64, ge=1)
    """With `soft`: the penalty sets in this many tokens before `rollout.max_new_tokens`."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """With `soft`: the whole penalty."""
