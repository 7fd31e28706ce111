"""Recognition of the handwritten digit in an image by a small classifier, trained on the spot on
scikit-learn's digits.

The judges are different classifiers, the last of them of another half of the data. Train with one
of the first two and measure with the last: a policy that exploits the weaknesses of the one is
exposed by the other. A network is easily exploited, since it is just as sure of pictures that look
like nothing it was trained on; a density is not.
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
BANDWIDTH = 0.7
"""Standard deviation of the density's kernels, per pixel of 0..1."""
BACKGROUND = 0.5
"""Density of pictures that show no digit, as that of so many training pictures at no distance. It
keeps the probabilities low far from all training pictures."""
_NAMED = re.compile(r"(?<!\d)\d(?!\d)|" + "|".join(rf"\b{word}\b" for word in NAMES))


class Judge(StrEnum):
    """Classifier that judges the images."""

    NETWORK = "network"
    """A neural network with one hidden layer, trained on every other digit."""
    DENSITY = "density"
    """A kernel density of each digit (Parzen 1962), of the same pictures as the network."""
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
    first = 1 if judge is Judge.TREES else 0
    pixels, labels = digits.data[first::2] / LEVELS, digits.target[first::2]
    model: Any
    if judge is Judge.NETWORK:
        model = MLPClassifier(
            (64,), alpha=1e-2, learning_rate_init=5e-3, max_iter=1000, random_state=0
        )
    elif judge is Judge.DENSITY:
        model = DensityClassifier()
    else:
        model = ExtraTreesClassifier(200, random_state=0)
    return model.fit(pixels, labels)


class DensityClassifier:
    """Classifier by kernel densities, one for each digit, before a constant background."""

    def fit(self, pixels: np.ndarray, labels: np.ndarray) -> DensityClassifier:
        """Keep the training pictures, [N, 64], and whether each shows each digit, [N, 10]."""
        self.pixels = pixels
        self.shows = np.eye(len(NAMES))[labels]
        return self

    def predict_proba(self, pixels: np.ndarray) -> np.ndarray:
        """Return the probability of each digit for pictures [M, 64]: [M, 10], whose rows add up to
        less than 1; the rest is the probability that a picture shows no digit."""
        from sklearn.metrics.pairwise import rbf_kernel

        near = rbf_kernel(pixels, self.pixels, gamma=1 / (2 * BANDWIDTH**2))
        densities = near @ self.shows
        return densities / (densities.sum(1, keepdims=True) + BACKGROUND)


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
