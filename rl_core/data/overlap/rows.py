"""Rows of a file that are compared with those of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

Row = Mapping[str, object]


@dataclass(frozen=True)
class Rows:
    """Rows of one file, which can be read more than once."""

    file: str
    read: Callable[[], Iterator[tuple[int, Row]]]
    """Function that yields the number of each row and the row, those that cannot be read left
    out."""
    folder: Path | str
    """Folder or address at which relative paths of pictures begin."""
    identity: str = ""
    """Digest of the content, and of how it is read."""
    benchmark: bool = False
