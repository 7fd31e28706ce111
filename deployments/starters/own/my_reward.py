"""A reward of this project's own, which is added to that of the environment."""

from collections.abc import Sequence

from rl_core.rewards import Modality, Sample, Scorer


class Brief(Scorer):
    """1 for an empty reply, falling to 0 at eight words."""

    modalities = frozenset({Modality.TEXT})

    def score(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Return a score for each sample, in their order."""
        return [max(0.0, 1 - len(sample.text.split()) / 8) for sample in samples]
