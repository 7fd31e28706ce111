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
