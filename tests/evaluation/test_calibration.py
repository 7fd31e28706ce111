"""The expected calibration error of pairs, worked by hand."""

from __future__ import annotations

import math

import pytest

from rl_core.evaluation.calibration import calibration, calibration_error


def test_a_case_worked_by_hand() -> None:
    # Both sure by 0.9, one of them right: 0.5 against 0.9. One sure by 0.6 and right.
    found = calibration_error([0.9, 0.1, 0.6, math.nan])
    assert found == pytest.approx((2 * 0.4 + 0.4) / 3)
    assert calibration_error([1.0, 1.0]) == 0.0
    assert calibration_error([0.5, 0.5]) == 0.0
    assert math.isnan(calibration_error([]))


def test_only_rows_with_a_confidence_are_calibrated() -> None:
    assert calibration([{"reward": 1.0}]) == {}
    assert calibration([{"confidence": 0.75}]) == {"calibration_error": 0.25}
