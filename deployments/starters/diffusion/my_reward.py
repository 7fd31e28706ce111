"""A reward of this project's own, which looks at the pictures; here it is only measured."""

from collections.abc import Sequence

import numpy as np

from rl_core.rewards import ImageScorer, Sample


class Ink(ImageScorer):
    """Share of the picture that is bright: a model that is paid for digits should not find it out
    by drawing more and more ink."""

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Return a score for each sample, in their order."""
        return [float((np.asarray(sample.image.convert("L")) > 127).mean()) for sample in samples]
