"""Problems of row values, and their text in reports and errors."""

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
    """A problem of one value of a row."""

    field: str
    reason: str
    """Short class of the problem, equal for all rows that share it."""
    value: object
    expected: str

    def at(self, place: str) -> str:
        """Return this problem as one sentence that begins with its place, `file:row`."""
        return (
            f"{place} field {self.field}: {self.reason}, got {shown(self.value)}; expected "
            f"{self.expected}"
        )

    def rejection(self, file: str, row: int) -> Rejection:
        """Return this problem with its file and row, and the value shortened."""
        value = shown(self.value)
        return Rejection(
            file=file,
            row=row,
            field=self.field,
            reason=self.reason,
            value=value,
            expected=self.expected,
        )


def shown(value: object) -> str:
    """Return a value as shown in messages: at most `MAX_SHOWN` characters."""
    text = "nothing" if value is None else _repr.repr(value)
    text = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
    # Lone surrogates are printable nowhere; a report must be.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def as_list(value: object) -> list[Any] | None:
    """Convert a list, tuple or numpy array to a list; return None for anything else. The items may
    be anything: a caller looks before it uses one."""
    if isinstance(value, list | tuple):
        return list(value)
    to_list = getattr(value, "tolist", None)
    if to_list is not None and getattr(value, "ndim", 0) > 0:
        return to_list()
    return None


def is_missing(value: object) -> bool:
    """Return True if the row has no value: None, or the NaN that pandas puts into the gaps of a
    column."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def get(row: Mapping[str, object], *names: str) -> Any:
    """Return the value of the first of these keys that has one, or None; it may be anything,
    since users wrote it."""
    return next((row[name] for name in names if not is_missing(row.get(name))), None)
