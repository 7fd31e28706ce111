"""A scorer of the tests, which recipes name by its import path."""

from __future__ import annotations

from collections.abc import Sequence

from rl_core.rewards import Modality, Sample, Scorer


class LowerCase(Scorer):
    """The share of lower-case letters: even what a random model writes differs in it."""

    modalities = frozenset({Modality.TEXT})

    def score(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Score samples; none is unscored."""
        return [
            sum(letter.islower() for letter in sample.text) / max(1, len(sample.text))
            for sample in samples
        ]


class ChangesItsMind(LowerCase):
    """The share of lower-case letters, and what that share takes away once `after` samples were
    scored: a policy that follows it gets worse in the end."""

    class Config(LowerCase.Config):
        after: int
        """Number of samples that are scored as they should be."""

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.num_scored = 0

    def score(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Score samples; none is unscored."""
        sign = 1 if self.num_scored < self.config.after else -1
        self.num_scored += len(samples)
        return [sign * share for share in super().score(samples)]
