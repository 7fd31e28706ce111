"""Rows as agents are given them: JSON, whatever a table's columns hold."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal

import numpy as np

from rl_core.rollout.agents.given_row import given_row


def test_columns_that_json_has_not_become_text():
    columns = {
        "day": date(2026, 11, 29),
        "price": Decimal("1.50"),
        "scores": np.array([1.0, float("nan")]),
        "spec": {"count": np.int64(3)},
    }
    row = given_row([{"role": "user", "content": "hi"}], columns)
    assert json.loads(json.dumps(row, allow_nan=False)) == {
        "prompt": [{"role": "user", "content": "hi"}],
        "day": "2026-11-29",
        "price": "1.50",
        "scores": [1.0, None],
        "spec": {"count": 3},
    }
