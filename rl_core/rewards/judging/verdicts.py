"""Verdicts: what a judge's own words, or the probabilities of its next token, say.

A verdict is read at the end of the judge's words alone: what it quotes of a reply comes before.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum

from rl_core.rewards.judging.requests import Answer

LEAST_MASS = 0.01
"""Probability that all labels together must have, below which a judge says something else."""
DIGITS = 4
"""Decimals of a value: below them, the size of a batch decides."""


class Reading(StrEnum):
    """Way of reading a verdict."""

    LOG_PROB = "log_prob"
    """The probabilities of the labels as the judge's next token; the score is their mean value."""
    REGEX = "regex"
    """The last match of `pattern`, which must end the judge's words."""
    JSON = "json"
    """The key `json_key` of an object that ends the judge's words."""


class Unreadable(ValueError):
    """A judge's words hold no verdict."""


def expected_value(answer: Answer, labels: Mapping[str, float]) -> float:
    """Return the mean of the labels' values under the judge's distribution. Raises: Unreadable when
    it says something else."""
    probs = answer.label_probs or {}
    mass = math.fsum(probs.get(label, 0.0) for label in labels)
    if not mass >= LEAST_MASS:
        words = ", ".join(map(repr, labels))
        raise Unreadable(
            f"the judge would say none of {words}: together they have probability {mass:.2g}"
        )
    total = math.fsum(probs.get(label, 0.0) * value for label, value in labels.items())
    return round(total / mass, DIGITS)


def matched(text: str, pattern: re.Pattern[str]) -> str:
    """Return the verdict of the last match, which ends the text: its first group, or all of it.
    Raises: Unreadable."""
    said = text.rstrip()
    matches = list(pattern.finditer(said))
    found = matches[-1] if matches else None
    if found is None or found.end() != len(said):
        raise Unreadable(f"the judge's words do not end in {pattern.pattern}: {said[-80:]!r}")
    return str(found[1] if pattern.groups else found[0]).strip()


def from_json(text: str, key: str) -> str:
    """Return the value of a key of the JSON object that ends the text. Raises: Unreadable."""
    said = text.rstrip().removesuffix("```").rstrip()
    decoder = json.JSONDecoder()
    start = said.find("{")
    while start >= 0:
        try:
            found, end = decoder.raw_decode(said, start)
        except (ValueError, RecursionError):
            found, end = None, -1
        if end == len(said):
            if isinstance(found, dict) and isinstance(found.get(key), str | int | float):
                return str(found[key]).strip()
            break
        # An object in the middle is skipped as a whole.
        start = said.find("{", max(start + 1, end))
    raise Unreadable(f"the judge's words do not end in an object with {key!r}: {said[-80:]!r}")


def value_of_words(
    verdict: str, labels: Mapping[str, float] | None, scale: tuple[float, float]
) -> float:
    """Return the value of a verdict.

    Args: labels: value of each word; unset reads a number on `scale`, which becomes 0 to 1. Raises:
    Unreadable when it is none of them.
    """
    if labels is not None:
        for label, value in labels.items():
            if verdict.casefold() == label.casefold():
                return value
        raise Unreadable(f"the verdict {verdict[:40]!r} is none of {', '.join(labels)}")
    low, high = scale
    if not re.fullmatch(r"[+-]?\d{1,12}(?:\.\d{1,12})?", verdict, re.ASCII):
        raise Unreadable(f"the verdict {verdict[:40]!r} is not a number")
    if not low <= float(verdict) <= high:
        raise Unreadable(f"the verdict {verdict} is not between {low:g} and {high:g}")
    return (float(verdict) - low) / (high - low)
