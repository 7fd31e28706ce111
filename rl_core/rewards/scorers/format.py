"""The form of the last reply: does all of it match a regular expression? By default thinking, then an answer."""

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
    """1.0 when the whole reply has the form, else 0.0."""

    class Config(Scorer.Config):
        """The form."""

        pattern: str = THINK_THEN_ANSWER
        """A regular expression that the whole reply must match; `.` matches line ends, too."""

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
        """Never marks a sample."""
        pattern = re.compile(self.config.pattern, re.DOTALL)
        return [float(pattern.fullmatch(sample.text) is not None) for sample in samples]
