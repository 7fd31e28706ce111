"""Loader of the cache that `mpo` publishes: preference pairs by index, read from disk on access.

`meta_public.json` names each subset's images (`root`), annotations and number of rows, relative to
the cache. Only the byte offsets of the rows are kept in memory.
"""

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from rl_core.data.store.publish import open_published
from rl_core.errors import DataError
from schemas.rows.preference_rows import PreferencePair, preference_pair

META = "meta_public.json"
SENTINEL = ".mmpr_ready"


class PreferenceDataset:
    """All rows of all subsets, in the order of the meta file.

    Args: root: the cache, or its `meta_public.json`. run_hash: required run hash of the
    preparation.
    Raises: DataError when the cache is not complete, or a subset does not have the declared number
    of rows.
    """

    def __init__(self, root: Path | str, run_hash: str | None = None) -> None:
        path = Path(root).expanduser()
        self.root = path.parent if path.name == META else path
        self.sentinel = open_published(self.root, SENTINEL, run_hash)
        self.meta = read_meta(self.root)
        self._subsets = list(self.meta)
        self._offsets = [row_offsets(self.root, name, entry) for name, entry in self.meta.items()]
        self._ends = list(accumulate(len(offsets) for offsets in self._offsets))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> PreferencePair:
        """Return a pair, with absolute image paths. Raises: IndexError; DataError naming file and
        row."""
        subset = self._subset(index)
        place = index - (self._ends[subset - 1] if subset else 0)
        entry = self.meta[self._subsets[subset]]
        file = self.root / entry["annotation"]
        with file.open("rb") as lines:
            lines.seek(self._offsets[subset][place])
            row = json.loads(lines.readline())
        return preference_pair(row, folder=self.root / entry["root"], place=f"{file}:{place + 1}")

    def __iter__(self) -> Iterator[PreferencePair]:
        return (self[index] for index in range(len(self)))

    def subset_of(self, index: int) -> str:
        """Return the name of the subset that a pair belongs to. Raises: IndexError."""
        return self._subsets[self._subset(index)]

    def number_of(self, index: int) -> int:
        """Return the number of a pair among all pairs, from 1."""
        return index + 1

    def _subset(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return bisect_right(self._ends, index)


def read_meta(root: Path) -> dict[str, dict[str, Any]]:
    """Read the subsets of a cache. Raises: DataError when the file cannot be read."""
    try:
        return json.loads((root / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{root / META}: cannot be read ({error}); prepare it again") from error


def row_offsets(root: Path, name: str, entry: dict[str, Any]) -> "array[int]":
    """Return the byte offset of each row of a subset. Raises: DataError when there are more or
    fewer than `length`."""
    offsets, position = array("q"), 0
    with (root / entry["annotation"]).open("rb") as lines:
        for line in lines:
            offsets.append(position)
            position += len(line)
    if len(offsets) != entry["length"]:
        raise DataError(
            f"{root / META}: subset {name!r} has length {entry['length']}, its file "
            f"{len(offsets)} rows"
        )
    return offsets
