"""The soft overlong penalty (DAPO, arXiv 2503.14476 eq. 13): replies are free up to a length, then
penalised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from rl_core.rewards.base import Modality, Sample, Scorer, Unscored, reward_scorers


@reward_scorers.register("length")
class LengthScorer(Scorer):
    """0 up to `max_length - buffer` tokens of the last reply, falling to `-penalty` at `max_length`
    and beyond."""

    class Config(Scorer.Config):
        """Settings of the length penalty."""

        max_length: int = Field(ge=1)
        """Length in tokens from which the penalty is full; usually `rollout.max_new_tokens`."""
        buffer: int = Field(ge=1)
        """Tokens before `max_length` at which the penalty starts."""
        penalty: float = Field(default=1.0, ge=0)
        """The full penalty."""

        @model_validator(mode="after")
        def _buffer_fits(self) -> Self:
            if self.buffer > self.max_length:
                raise ValueError(
                    f"buffer must lie in 1..max_length ({self.max_length}), got {self.buffer}"
                )
            return self

    config: Config
    modalities = frozenset({Modality.TEXT})

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score samples; none is unscored."""
        import torch

        from rl_core.algorithms.shaping import soft_overlong_penalty

        config, lengths_B = self.config, torch.tensor([sample.num_tokens for sample in samples])
        return soft_overlong_penalty(
            lengths_B, config.max_length, config.buffer, config.penalty
        ).tolist()
