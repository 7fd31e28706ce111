"""A scorer whose score depends on every pixel and on the row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_core.rewards.base import ImageScorer, Sample, Unscored


class ShadeScorer(ImageScorer):
    """How near a picture's mean shade is to `metadata.level`; a picture of no row is marked."""

    class Config(ImageScorer.Config):
        """Nothing of its own."""

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        return [
            1 - abs(float(np.asarray(one.image).mean()) / 255 - one.metadata["level"])
            for one in samples
        ]
