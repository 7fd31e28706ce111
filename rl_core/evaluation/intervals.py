"""Confidence intervals for shares and for the change between two shares measured on the same
rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist


def wilson_interval(num_right: int, num_rows: int, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of a share (Wilson 1927), which stays inside [0, 1] and is accurate at 0
    and 1."""
    if num_rows == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = num_right / num_rows
    scale = 1 + z * z / num_rows
    centre = (share + z * z / (2 * num_rows)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / num_rows + z * z / (4 * num_rows**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_change(
    before: Sequence[float],
    after: Sequence[float],
    level: float = 0.95,
    *,
    within: tuple[float, float] | None = None,
) -> tuple[float, float, float]:
    """Return the mean change of the same rows and its normal interval: (change, low, high).

    Args: within: least and greatest value that a row can have, such as 0 and 1 for a share; the
    interval then ends where a change has to end. The normal interval knows no such ends.
    """
    changes = [b - a for a, b in zip(before, after, strict=True)]
    mean = sum(changes) / len(changes)
    if len(changes) < 2:
        return mean, -1.0, 1.0
    variance = sum((change - mean) ** 2 for change in changes) / (len(changes) - 1)
    half = NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(variance / len(changes))
    low, high = mean - half, mean + half
    if within is not None:
        most = within[1] - within[0]
        low, high = max(-most, low), min(most, high)
    return mean, low, high
