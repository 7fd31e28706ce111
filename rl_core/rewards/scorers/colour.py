"""Share of an image in the colour that the prompt names. Small and offline, for smoke recipes and
tests.

The closeness of a pixel is 1 minus its distance to the colour in RGB, relative to the largest
distance from that colour; the score is the mean over all pixels, so that every step towards the
colour raises it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (255, 0, 0),
    "green": (0, 128, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "orange": (255, 165, 0),
    "purple": (128, 0, 128),
    "pink": (255, 192, 203),
    "brown": (139, 69, 19),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "grey": (128, 128, 128),
    "gray": (128, 128, 128),
}
"""The CSS values of basic colours."""
_WORD = re.compile(r"[a-z]+")


@reward_scorers.register("colour")
class ColourScorer(ImageScorer):
    """Closeness of the image to the named colour, from 0 (as far as possible) to 1 (all of it has
    that colour)."""

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score images; samples whose prompt names no colour, or several, are unscored."""
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> float | Unscored:
        named = set()
        for word in _WORD.findall(sample.prompt.lower()):
            if word in COLOURS:
                named.add(COLOURS[word])
        if len(named) != 1:
            return Unscored(
                f"the prompt must name one colour of {', '.join(COLOURS)}; got "
                f"{sample.prompt!r:.80}"
            )
        target = np.asarray(named.pop(), dtype=np.float64)
        assert sample.image is not None
        distances = np.linalg.norm(
            np.asarray(sample.image.convert("RGB"), dtype=np.float64) - target, axis=-1
        )
        farthest = np.linalg.norm(np.maximum(target, 255 - target))
        return float(1.0 - distances.mean() / farthest)
