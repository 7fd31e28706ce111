"""A reward of this project's own, which looks at the pictures: a tenth for thin strokes."""

from collections.abc import Sequence

import numpy as np

from rl_core.rewards import ImageScorer, Sample


class Thin(ImageScorer):
    """Share of the picture that is dark, so that digits are not paid for by more and more ink."""

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float]:
        """Return a score for each sample, in their order."""
        return [float((np.asarray(sample.image.convert("L")) < 128).mean()) for sample in samples]
