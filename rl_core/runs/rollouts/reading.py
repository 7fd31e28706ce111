"""Stored rollouts of a run: found, filtered and sorted without holding more than is shown."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rl_core.errors import StorageError

Row = dict[str, Any]
"""One stored sample; `rl_core.runs.rollouts.columns.schema` names its columns."""
PLACE = ("sample_id", "group_id", "uid", "step", "track")
TEXTS = ("prompt", "turns", "response", "ground_truth")
ROWS_AT_ONCE = 256


class Order(StrEnum):
    """Order of the rows that are shown."""

    STEP = "step"
    """Rows in the order in which they were sampled."""
    REWARD = "reward"
    """Highest reward first."""
    ADVANTAGE = "advantage"
    """Largest mean advantage first, of either sign."""
    LENGTH = "length"
    """Longest reply first."""
    DELTA = "delta"
    """Largest mean distance between the trainer's log-probabilities and the engine's first."""


_COLUMN = {
    Order.REWARD: "reward",
    Order.ADVANTAGE: "advantage",
    Order.LENGTH: "num_tokens",
    Order.DELTA: "delta_log_prob",
}


@dataclass(frozen=True)
class Wanted:
    """Choice among the rows of a run."""

    step: int | None = None
    track: str | None = None
    group: str | None = None
    """Group id, or the uid of a prompt, whose groups of all steps are meant."""
    grep: str | None = None
    """Text that prompt, turns, reply or ground truth contain, in any case."""

    def __call__(self, row: Row) -> bool:
        """Return True if a row is meant; it needs the columns `PLACE`, and `TEXTS` for `grep`."""
        return (
            (self.step is None or row["step"] == self.step)
            and (self.track is None or row["track"] == self.track)
            and (self.group is None or self.group in (row["group_id"], row["uid"]))
            and (self.grep is None or self.grep.casefold() in _text(row).casefold())
        )


def files_of(folder: Path) -> dict[int, Path]:
    """Return the file of each stored step, in order."""
    paths = sorted(folder.glob("step-*.parquet"))
    return dict(sorted((int(path.stem.split("-")[1]), path) for path in paths))


def steps_of(folder: Path, step: int | None = None) -> dict[int, Path]:
    """Return the files of a run's steps, or of one.

    Raises: StorageError when there is none, naming those that there are.
    """
    files = files_of(folder)
    if not files:
        raise StorageError(
            f"{folder}: no rollouts are stored; a run stores them after each step unless its "
            "recipe says tracking.rollouts: none"
        )
    if step is None:
        return files
    if step not in files:
        known = sorted(files)
        raise StorageError(
            f"{folder}: step {step} is not stored; there are {len(known)} steps, {known[0]} to "
            f"{known[-1]}"
        )
    return {step: files[step]}


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield the rows of a step's file. Raises: StorageError when it is not readable."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                yield from batch.to_pylist(maps_as_pydicts="strict")
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"{path}: not a readable file of rollouts ({error})") from error


def select(
    folder: Path, wanted: Wanted, order: Order = Order.STEP, limit: int | None = None
) -> list[Row]:
    """Return whole rows that are meant, the first `limit` in an order. Raises: StorageError."""
    column = _COLUMN.get(order)
    light = [*PLACE, *([column] if column else []), *(TEXTS if wanted.grep else [])]

    def found() -> Iterator[tuple[float, int, int]]:
        for step, path in steps_of(folder, wanted.step).items():
            for number, row in enumerate(read_rows(path, light)):
                if wanted(row):
                    yield _rank(row, column), step, number

    chosen = sorted(found()) if limit is None else heapq.nsmallest(limit, found())
    return _whole(folder, [(step, number) for _, step, number in chosen])


def first_rows(rows: Iterable[Row], order: Order, limit: int) -> list[Row]:
    """Return the first `limit` rows in an order. Args: rows: with the columns of a file."""
    column = _COLUMN.get(order)
    return heapq.nsmallest(limit, rows, key=lambda row: _rank(row, column))


def messages_of(row: Row) -> list[dict[str, Any]]:
    """Return the conversation of a row: the prompt's messages, then the turns; a reply without
    turns is one."""
    prompt = json.loads(row["prompt"])
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
    said = row["turns"] or [{"role": "assistant", "content": row["response"] or ""}]
    return [{**one, "content": _content(one.get("content"))} for one in [*asked, *said]]


def _whole(folder: Path, places: Sequence[tuple[int, int]]) -> list[Row]:
    files, needed = files_of(folder), {}
    for step, number in places:
        needed.setdefault(step, set()).add(number)
    rows = {}
    for step, numbers in needed.items():
        for number, row in enumerate(read_rows(files[step])):
            if number in numbers:
                rows[step, number] = row
    return [rows[place] for place in places]


def _rank(row: Row, column: str | None) -> float:
    value = 0.0 if column is None else row[column]
    if value is None or math.isnan(value):
        return math.inf
    if column == "advantage":
        return -abs(value)
    return -value


def _text(row: Row) -> str:
    said = [one["content"] for one in messages_of(row)]
    return "\n".join([*said, row["response"] or "", row["ground_truth"] or ""])


def _content(content: Any) -> str:
    """Return what a message says; its pictures are named by their kind."""
    if isinstance(content, list):
        return "\n".join(
            str(part.get("text", f"<{part.get('type')}>")) if isinstance(part, dict) else str(part)
            for part in content
        )
    return "" if content is None else str(content)
