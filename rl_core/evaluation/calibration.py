"""Calibration of probabilities that a model gives to pairs: whether what it is 80 % sure of is true
in 80 % of the cases."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rl_core.evaluation.rows import Row, number

CONFIDENCE = "confidence"
"""Key of a row with the probability that its model gives to the right answer."""
CALIBRATION_ERROR = "calibration_error"
NUM_BINS = 10


def calibration_error(probabilities: Sequence[float]) -> float:
    """Return the expected calibration error (arXiv 1706.04599 eq. 5), from 0 to 0.5; NaN without a
    row.

    Args: probabilities: those of the right one of two answers, from 0 to 1. The model's choice is
    right above 1/2, and its confidence is the probability of its choice, in 10 bins from 1/2 to 1.
    """
    gaps, counts = [0.0] * NUM_BINS, 0
    for probability in probabilities:
        if math.isnan(probability):
            continue
        sure = max(probability, 1.0 - probability)
        if probability > 0.5:
            right = 1.0
        elif probability == 0.5:
            right = 0.5
        else:
            right = 0.0
        gaps[min(NUM_BINS - 1, int((sure - 0.5) * 2 * NUM_BINS))] += right - sure
        counts += 1
    if counts:
        return sum(map(abs, gaps)) / counts
    return math.nan


def calibration(rows: Sequence[Row]) -> dict[str, float]:
    """Return the calibration error of rows with a `confidence`; empty for others."""
    if not rows or CONFIDENCE not in rows[0]:
        return {}
    return {CALIBRATION_ERROR: calibration_error([number(row, CONFIDENCE) for row in rows])}
