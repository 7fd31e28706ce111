"""The combinations of a sweep: `algorithm.name=grpo,rloo seed=1,2` are four runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from rl_core.errors import RecipeError

MAX_RUNS = 64
"""Most runs of one sweep."""
_OPENING, _CLOSING, _QUOTES = "[{(", "]})", "'\""


def combinations(assignments: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each run, in which the last key changes fastest.

    Commas separate values, except inside brackets and quotes: `data.train=[a.jsonl,b.jsonl]` is one
    value. Raises: RecipeError on an assignment without `=`, an empty value, a key or value that is
    given twice, or too many runs.
    """
    choices: dict[str, list[str]] = {}
    for text in assignments:
        key, sign, given = text.partition("=")
        key = key.strip()
        if not sign or not key:
            raise RecipeError(f"{text!r} is not of the form key.subkey=value,value")
        values = split_values(given)
        if len(values) > 1 and not all(values):
            raise RecipeError(f"{text!r}: there is nothing between two commas; leave one out")
        if len(set(values)) < len(values):
            raise RecipeError(f"{text!r}: a value is there twice, and would be the same run")
        if key in choices:
            raise RecipeError(f"{key} is there twice; write all its values behind one =")
        choices[key] = [f"{key}={value}" for value in values]
    runs = [list(chosen) for chosen in product(*choices.values())]
    if len(runs) > MAX_RUNS:
        raise RecipeError(f"these are {len(runs)} runs; a sweep has at most {MAX_RUNS}")
    return runs


def split_values(text: str) -> list[str]:
    """Split a text at its commas outside of brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for one in text:
        if quote:
            quote = "" if one == quote else quote
        elif one in _QUOTES:
            quote = one
        depth += (one in _OPENING and not quote) - (one in _CLOSING and not quote)
        if one == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += one
    return [value.strip() for value in values]


def varied(runs: Sequence[Sequence[str]]) -> list[str]:
    """Return what tells each run from the others, such as `algorithm.name=grpo seed=1`."""
    shared = set(runs[0]).intersection(*runs) if runs else set()
    named = []
    for run in runs:
        own = [text for text in run if text not in shared]
        named.append(" ".join(own) or "as it is")
    return named
