"""The place of the first row with each id, to find an id that two rows have."""

from collections.abc import Sequence
from pathlib import Path

from rl_core.data.store.key_table import KeyTable, key_of
from schemas.rows.problems import Problem


class IdPlaces:
    """The place of the first row with each id, in 16 bytes an id.

    Args: paths: the files of the rows, whose places are `path:number`.
    """

    def __init__(self, paths: Sequence[Path | str]) -> None:
        self._files = list(dict.fromkeys(map(str, paths)))
        self._index_of = {file: index for index, file in enumerate(self._files)}
        self._known = KeyTable()

    def first_place(self, prompt_id: str, place: str) -> str:
        """Return the place of the first row that had this id: this one, if none did."""
        file, _, number = place.rpartition(":")
        code = self._index_of[file] + len(self._files) * int(number)
        found = self._known.setdefault(key_of(prompt_id), code)
        row, index = divmod(found, len(self._files))
        return f"{self._files[index]}:{row}"

    def problem(self, prompt_id: str, place: str) -> Problem | None:
        """Return the problem of a row whose id another row had before; it would merge their
        groups."""
        first = self.first_place(prompt_id, place)
        if first == place:
            return None
        file, _, row = first.rpartition(":")
        other = f"row {row}" if place.startswith(f"{file}:") else first
        return Problem(
            "prompt_id", "repeated id", prompt_id, f"an id of its own; {other} has this one"
        )
