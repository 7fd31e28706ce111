"""Format of the last reply: a regular expression for the whole of it, by default thinking followed
by an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import field_validator

from rl_core.rewards.base import Modality, Sample, Scorer, Unscored, reward_scorers

# No tag inside another: saying a tag twice is not the form.
_INSIDE = r"(?:(?!</?(?:think|answer)>).)*"
THINK_THEN_ANSWER = rf"\s*<think>{_INSIDE}</think>\s*<answer>{_INSIDE}</answer>\s*"


@reward_scorers.register("format")
class FormatScorer(Scorer):
    """1.0 if the whole reply has the format, else 0.0."""

    class Config(Scorer.Config):
        """Settings of the format scorer."""

        pattern: str = THINK_THEN_ANSWER
        """Regular expression that the whole reply must match; `.` matches line ends, too."""

        @field_validator("pattern")
        @classmethod
        def _compiles(cls, value: str) -> str:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
            return value

    config: Config
    modalities = frozenset({Modality.TEXT})

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score samples; none is unscored."""
        pattern = re.compile(self.config.pattern, re.DOTALL)
        return [float(pattern.fullmatch(sample.text) is not None) for sample in samples]
