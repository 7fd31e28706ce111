"""Comparison of two models on the same rows: the difference and the confidence in it (paired
bootstrap; Efron 1979).

Rows are resampled with replacement, each with both models' values, and the mean change is computed
every time. The spread of those means estimates what other held-out rows would have shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 10_000
_MAX_DRAWN = 10_000_000
"""Maximum number of counts in memory at once."""


@dataclass(frozen=True)
class Change:
    """Mean change between two models on the same rows."""

    mean: float
    low: float
    """Lower end of the 95 % interval, by percentiles of the resampled means."""
    high: float
    confidence: float
    """Share of the resampled means that exceed the margin."""


def paired_bootstrap(
    before_N: Sequence[float],
    after_N: Sequence[float],
    *,
    margin: float = 0.0,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Change:
    """Return the change from `before_N` to `after_N`, and the confidence that it exceeds `margin`.

    Args: before_N, after_N: [N] one value per row, in the same order of rows. The same input always
    gives the same result. Raises: ValueError without rows, or when the lengths differ.
    """
    changes_N = np.array([after - before for before, after in zip(before_N, after_N, strict=True)])
    if not len(changes_N):
        raise ValueError("no rows to compare: expected at least one")
    means = resampled_means(changes_N, num_resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, (0.025, 0.975))
    return Change(float(changes_N.mean()), float(low), float(high), float((means > margin).mean()))


def resampled_means(
    changes_N: NDArray[np.float64], num: int, draw: np.random.Generator
) -> NDArray[np.float64]:
    """Return [num] means of N changes drawn with replacement.

    A mean does not depend on the rows that its values came from, so the count of each distinct
    value is drawn instead.
    """
    values_V, counts_V = np.unique(changes_N, return_counts=True)
    shares_V = counts_V / len(changes_N)
    block = max(1, _MAX_DRAWN // len(values_V))
    sizes = [min(block, num - start) for start in range(0, num, block)]
    return np.concatenate(
        [draw.multinomial(len(changes_N), shares_V, size) @ values_V for size in sizes]
    ) / len(changes_N)
