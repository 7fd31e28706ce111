"""Checks of numeric settings, shared by every recipe section and plug-in config.

Pydantic accepts a boolean as 0 or 1, so that YAML's `learning_rate: yes` would train at rate 1, and
integers of any length.
"""

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from pydantic import Field

LARGEST = 2**53
"""Largest accepted integer; floats cannot represent every integer beyond it."""

Seconds = Annotated[float, Field(le=10_000_000)]
"""Duration in seconds, of some months at most: much longer ones overflow the timers that wait for
them."""


def holds_numbers(annotation: object) -> bool:
    """Return True if a field of this type holds numbers, at any depth."""
    if get_origin(annotation) is Annotated:
        return holds_numbers(get_args(annotation)[0])
    return annotation is int or annotation is float or any(map(holds_numbers, get_args(annotation)))


def has_boolean_for_number(annotation: object, value: object) -> bool:
    """Return True if the value is a boolean where the annotation allows numbers but no booleans, at
    any depth."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return has_boolean_for_number(inside[0], value)
    if origin in (Union, UnionType):
        if isinstance(value, bool) and bool in inside:
            return False
        return any(has_boolean_for_number(one, value) for one in inside)
    if isinstance(value, bool):
        return annotation is int or annotation is float
    if isinstance(value, Mapping):
        return len(inside) == 2 and any(
            has_boolean_for_number(inside[1], one) for one in value.values()
        )
    if isinstance(value, Sequence) and not isinstance(value, str) and inside:
        if len(inside) == len(value) and Ellipsis not in inside:
            types = inside
        else:
            types = [inside[0]] * len(value)
        return any(
            has_boolean_for_number(one, part) for one, part in zip(types, value, strict=True)
        )
    return False


def beyond_all_settings(value: object) -> int | float | None:
    """Return the first number in a value, at any depth, that is larger than any setting allows."""
    if isinstance(value, int | float):
        return value if abs(value) > LARGEST else None
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return None
    for part in value:
        if (found := beyond_all_settings(part)) is not None:
            return found
    return None
