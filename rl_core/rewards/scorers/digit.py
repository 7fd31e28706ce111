"""Recognition of the handwritten digit in an image by a small classifier, trained on the spot on
scikit-learn's digits.

There are two independent judges, of different classifiers and different halves of the data. Train
with one and measure with the other: a policy that exploits the weaknesses of the first is exposed
by the second.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import Any

import numpy as np

from rl_core.builtin.data.digit_prompts import NAMES
from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers

SIDE = 8
"""Side of the digits in pixels."""
LEVELS = 16.0
_NAMED = re.compile(r"(?<!\d)\d(?!\d)|" + "|".join(rf"\b{word}\b" for word in NAMES))


class Judge(StrEnum):
    """Classifier that judges the images."""

    NETWORK = "network"
    """A neural network with one hidden layer, trained on every other digit."""
    TREES = "trees"
    """Randomised trees (Geurts et al. 2006), trained on the other half."""


@reward_scorers.register("digit")
class DigitScorer(ImageScorer):
    """Probability that the judge gives to the requested digit: the row's `metadata.digit`, or,
    without one, the digit that the prompt names (`7` or `seven`)."""

    class Config(ImageScorer.Config):
        """Settings of the digit scorer."""

        judge: Judge = Judge.NETWORK
        """Classifier that judges the images."""

    config: Config

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score images; samples that ask for no digit, or for several, are unscored."""
        assert all(sample.image is not None for sample in samples)
        pixels = np.stack([_pixels(sample.image) for sample in samples])
        probabilities = classifier(self.config.judge).predict_proba(pixels)
        return [_paid(sample, row) for sample, row in zip(samples, probabilities, strict=True)]


@cache
def classifier(judge: Judge) -> Any:
    """Return the trained classifier; it is the same in every process."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.neural_network import MLPClassifier

    digits: Any = load_digits()
    first = 0 if judge is Judge.NETWORK else 1
    pixels, labels = digits.data[first::2] / LEVELS, digits.target[first::2]
    if judge is Judge.NETWORK:
        model = MLPClassifier(
            (64,), alpha=1e-2, learning_rate_init=5e-3, max_iter=1000, random_state=0
        )
    else:
        model = ExtraTreesClassifier(200, random_state=0)
    return model.fit(pixels, labels)


def _pixels(image: Any) -> np.ndarray:
    """Convert an image of any size to the classifiers' input: bright on dark, 8 x 8, [64] of
    0..1."""
    from PIL.Image import Resampling

    small = image.convert("L").resize((SIDE, SIDE), Resampling.BOX)
    return np.asarray(small, dtype=np.float64).reshape(-1) / 255.0


def named_digits(prompt: str) -> set[int]:
    """Return the digits that a prompt names, as words or as single figures."""
    return {
        int(word) if word.isdigit() else NAMES.index(word)
        for word in _NAMED.findall(prompt.lower())
    }


def _paid(sample: Sample, probabilities: np.ndarray) -> float | Unscored:
    digit = sample.metadata.get("digit")
    if digit is None:
        named = named_digits(sample.prompt)
        if len(named) != 1:
            return Unscored(f"the prompt must name one digit, got {sample.prompt!r:.80}")
        digit = named.pop()
    if type(digit) is not int or not 0 <= digit < len(NAMES):
        return Unscored(f"metadata.digit must be a whole number from 0 to 9, got {digit!r:.80}")
    return float(probabilities[digit])
