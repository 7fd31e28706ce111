"""Comparison of a program's output with the expected one, outside the sandbox, on plain text and
JSON alone.

Text is compared line by line without the white space around lines, and word by word where a line
differs: whole numbers must be equal, a number that is expected with a fraction may differ by
`TOLERANCE`.
"""

from __future__ import annotations

import json
import math
from ast import literal_eval
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

TOLERANCE = 1e-6
"""Tolerance of floats, relative, or absolute below 1."""


def same_output(got: str, expected: str) -> bool:
    """Return True if a program's standard output is the expected one."""
    got_lines, expected_lines = _lines(got), _lines(expected)
    return len(got_lines) == len(expected_lines) and all(map(_same_line, got_lines, expected_lines))


def same_result(result: bytes, expected: object, *, as_printed: bool) -> bool:
    """Return True if a returned value (as JSON) is the expected one, which may be a value or its
    text.

    Args: as_printed: the expected output is printed text, so a value may equal its text.
    """
    try:
        got = json.loads(result)
        if same_value(got, read_literal(expected) if isinstance(expected, str) else expected):
            return True
        return as_printed and isinstance(got, str) and same_output(got, str(expected))
    except (ValueError, RecursionError):
        return False


def read_literal(text: str) -> object:
    """Parse the value that a text denotes in JSON or Python; return the text itself if it denotes
    none."""
    for read in (json.loads, literal_eval):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return text.strip()


def same_value(got: object, expected: object) -> bool:
    """Compare plain values as Python does, except that tuples equal lists and a float may differ by
    `TOLERANCE`."""
    if isinstance(expected, list | tuple):
        return (
            isinstance(got, list)
            and len(got) == len(expected)
            and all(map(same_value, got, expected))
        )
    if isinstance(expected, Mapping):
        return (
            isinstance(got, Mapping)
            and {str(key) for key in expected} == set(got)
            and all(same_value(got[str(key)], value) for key, value in expected.items())
        )
    if isinstance(expected, float) and isinstance(got, int | float):
        try:
            return got == expected or math.isclose(
                got, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE
            )
        except OverflowError:  # a whole number that no float holds is not near one
            return False
    return type(got) is not list and got == expected


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _same_line(got: str, expected: str) -> bool:
    if got == expected:
        return True
    got_words, expected_words = got.split(), expected.split()
    return len(got_words) == len(expected_words) and all(map(_same_word, got_words, expected_words))


def _same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    got_number, expected_number = _number(got), _number(expected)
    if got_number is None or expected_number is None:
        return False
    if got_number == expected_number:
        return True
    is_whole = expected.lstrip("+-").isdigit()
    return not is_whole and math.isclose(
        got_number, expected_number, rel_tol=TOLERANCE, abs_tol=TOLERANCE
    )


def _number(word: str) -> Decimal | None:
    if len(word) > 400 or not word.isascii() or "_" in word:
        return None
    try:
        number = Decimal(word)
    except InvalidOperation:
        return None
    if number.is_finite() and abs(number.adjusted()) < 300:
        return number
    return None
