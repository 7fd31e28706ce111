"""Rows of an evaluation: what was answered to a prompt, and what it earned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NotRequired, TypedDict

from rl_core.data.prepare.chat_template import Message

Row = Mapping[str, object]
"""A reply's `PlayedRow`, or the measures of a prompt of a named set."""


class PlayedRow(TypedDict):
    """A reply to a held-out row, as it is stored. Scores are further keys, with numbers; NaN where
    a row has none."""

    group_id: str
    sample_id: str
    uid: str
    prompt: str | list[Message]
    response: str
    ground_truth: object
    stop_reason: str
    reward: float
    num_tokens: int
    made: NotRequired[str]
    """File of what was drawn."""
    images: NotRequired[list[str]]
    """Pictures of the prompt."""
    error: NotRequired[str]
    """Reason why the row has no verdict."""
    answer: NotRequired[str]
    """Answer that the environment read, if it reads answers."""
    passed: NotRequired[float]
    """1 if the reply passed, else 0, where the reward alone does not say it."""
    data_source: NotRequired[str]
    """Source of the prompt, in a named set."""


def number(row: Row, name: str) -> float:
    """Return a number of a row. Raises: TypeError when it is none."""
    value = row[name]
    if not isinstance(value, int | float):
        raise TypeError(f"{name} of an evaluated row is {value!r}; expected a number")
    return value
