"""A plain function as a scorer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rl_core.rewards.base import Modality, Sample, Scorer

RewardFunction = Callable[[Sample], float]
"""Function that gives one sample its score."""


def scorer_of(function: RewardFunction) -> type[Scorer]:
    """Return a scorer class, named as the function, that gives each sample what the function
    returns."""

    class FunctionScorer(Scorer):
        """A scorer that asks a function for each sample."""

        modalities = frozenset(Modality)

        def score(self, samples: Sequence[Sample]) -> Sequence[float]:
            """Return a score for each sample, in their order."""
            return [float(function(sample)) for sample in samples]

    FunctionScorer.__name__ = FunctionScorer.__qualname__ = function.__name__
    FunctionScorer.__doc__ = function.__doc__ or FunctionScorer.__doc__
    return FunctionScorer
