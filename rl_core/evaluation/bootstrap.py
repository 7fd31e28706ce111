"""Two models on the same rows: how much one is better, and how sure that is (paired bootstrap; Efron 1979).

Rows are drawn anew with replacement, each with both models' values, and the mean change is computed every time. The
spread of those means stands for what other held-out rows would have shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 10_000
_MAX_DRAWN = 10_000_000
"""Counts held in memory at once."""


@dataclass(frozen=True)
class Change:
    """The mean change between two models on the same rows."""

    mean: float
    low: float
    """95 % interval, by percentiles of the resampled means."""
    high: float
    confidence: float
    """Share of the resampled means that exceed the margin asked for."""


def paired_bootstrap(
    before_N: Sequence[float],
    after_N: Sequence[float],
    *,
    margin: float = 0.0,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Change:
    """The change from `before_N` to `after_N`, and how sure it is that it exceeds `margin`.

    Args: before_N, after_N: [N] one value per row, in the same order of rows. Returns the same for the same input.
    Raises: ValueError without rows, or when the lengths differ.
    """
    changes_N = np.array([after - before for before, after in zip(before_N, after_N, strict=True)])
    if not len(changes_N):
        raise ValueError("no rows to compare: expected at least one")
    means = _resampled_means(changes_N, num_resamples, np.random.default_rng(seed))
    low, high = np.quantile(means, (0.025, 0.975))
    return Change(float(changes_N.mean()), float(low), float(high), float((means > margin).mean()))


def _resampled_means(changes_N: NDArray[np.float64], num: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """[num] means of N changes drawn with replacement.

    Which row a value came from does not matter for a mean, so how often each different value came up is drawn instead.
    """
    values_V, counts_V = np.unique(changes_N, return_counts=True)
    shares_V = counts_V / len(changes_N)
    block = max(1, _MAX_DRAWN // len(values_V))
    sizes = [min(block, num - start) for start in range(0, num, block)]
    return np.concatenate([draw.multinomial(len(changes_N), shares_V, size) @ values_V for size in sizes]) / len(
        changes_N
    )
