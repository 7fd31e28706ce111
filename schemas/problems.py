"""What is wrong with one value of one row, and how it is said to a person."""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.receipts import Rejection

MAX_SHOWN = 80

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = MAX_SHOWN
_repr.maxlist = _repr.maxdict = _repr.maxtuple = 8
_repr.maxlevel = 4


@dataclass(frozen=True)
class Problem:
    """What is wrong with one value."""

    field: str
    reason: str
    """A short class of problem, the same for all rows that share it."""
    value: Any
    expected: str

    def at(self, place: str) -> str:
        """This problem in one sentence that begins with its place, `file:row`."""
        return f"{place} field {self.field}: {self.reason}, got {shown(self.value)}; expected {self.expected}"

    def rejection(self, file: str, row: int) -> Rejection:
        """This problem at its place, with the value shortened."""
        value = shown(self.value)
        return Rejection(file=file, row=row, field=self.field, reason=self.reason, value=value, expected=self.expected)


def shown(value: Any) -> str:
    """A value as a message shows it: at most `MAX_SHOWN` characters, whatever its size."""
    text = "nothing" if value is None else _repr.repr(value)
    text = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
    # Lone surrogates are printable nowhere; a report must be.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def as_list(value: Any) -> list[Any] | None:
    """A list, tuple or numpy array as a list; None for anything else."""
    if isinstance(value, list | tuple):
        return list(value)
    if getattr(value, "ndim", 0) > 0 and hasattr(value, "tolist"):
        return value.tolist()
    return None


def is_missing(value: Any) -> bool:
    """Whether nothing was written: None, or the NaN that pandas puts into the gaps of a column."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def get(row: Mapping[str, Any], *names: str) -> Any:
    """The first of these keys that has a value, or None."""
    return next((row[name] for name in names if not is_missing(row.get(name))), None)
