"""The recipe's `reward_service` block: treatment of failed scores and of truncated replies."""

from enum import StrEnum

from pydantic import Field

from schemas.sections.checks.numbers import Seconds
from schemas.sections.section import Section


class FailurePolicy(StrEnum):
    """Treatment of a row that a scorer failed to score after all tries. Such a row never gets the
    score 0."""

    DROP = "drop"
    """Leave the row out of the step, and count it."""
    FAIL = "fail"
    """Fail the step, with the reasons; the flow may retry it."""


class Truncation(StrEnum):
    """Reward of a reply that a length limit truncated."""

    KEEP = "keep"
    """Keep the reward."""
    ZERO = "zero"
    """Set the reward to 0."""
    SOFT = "soft"
    """Subtract a penalty that starts before the limit and is full at the limit (DAPO, arXiv
    2503.14476 eq. 13)."""


class RewardServiceConfig(Section):
    """Collection and shaping of rewards."""

    on_failure: FailurePolicy = FailurePolicy.DROP
    """Treatment of rows without a score."""
    max_tries: int = Field(default=3, ge=1)
    """Number of times that a scorer is called for a sample before it counts as failed."""
    backoff_s: Seconds = Field(default=0.5, ge=0)
    """Seconds to wait before the second try; each further pause is twice as long."""
    truncated: Truncation = Truncation.KEEP
    """Reward of truncated replies."""
    overlong_buffer: int = Field(default=64, ge=1)
    """With `truncated: soft`: tokens before `rollout.max_new_tokens` at which the penalty
    starts."""
    overlong_penalty: float = Field(default=1.0, ge=0)
    """With `truncated: soft`: the full penalty."""
