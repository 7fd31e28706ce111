"""Rows in batches, each checked against the prompt-row schema: what validation reports and preparation keeps."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_core.data.readers import read_rows
from rl_core.errors import DataError
from schemas.prompt_rows import AllowedEnvClasses, validate_rows
from schemas.receipts import Rejection

BATCH_ROWS = 4096


@dataclass
class Batch:
    """Rows of one file with their numbers, and what is wrong with some of them."""

    numbers: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        """Rows of the batch, good and bad, unreadable lines included."""
        return len(set(self.numbers) | self.rejected_numbers)

    @property
    def rejected_numbers(self) -> set[int]:
        """Numbers of the rows with at least one problem."""
        return {rejection.row for rejection in self.rejections}

    def accepted(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The good rows and their numbers."""
        bad = self.rejected_numbers
        return ((n, row) for n, row in zip(self.numbers, self.rows, strict=True) if n not in bad)


def checked_batches(
    path: Path | str,
    *,
    allowed_env_classes: AllowedEnvClasses,
    default_env_class: str | None,
    prompt_key: str = "prompt",
) -> Iterator[Batch]:
    """Read a file in batches of `BATCH_ROWS`; unreadable JSON lines are rejections like any other.

    Raises: DataError when the file as a whole cannot be read, or holds nothing.
    """
    num_seen = 0
    for batch in _raw_batches(path, prompt_key):
        batch.rejections += validate_rows(
            batch.rows,
            file=str(path),
            first_row=batch.numbers[0] if batch.numbers else 1,
            row_numbers=batch.numbers,
            allowed_env_classes=allowed_env_classes,
            default_env_class=default_env_class,
        )
        batch.rejections.sort(key=lambda rejection: rejection.row)
        num_seen += batch.num_rows
        yield batch
    if not num_seen:
        raise DataError(f"{path}: the file is empty; expected at least one row")


def _raw_batches(path: Path | str, prompt_key: str) -> Iterator[Batch]:
    unreadable: list[Rejection] = []

    def on_bad_line(number: int, error: DataError) -> None:
        unreadable.append(_unreadable_line(str(path), number, error))

    batch = Batch()
    for number, row in read_rows(path, prompt_key=prompt_key, on_bad_line=on_bad_line):
        batch.numbers.append(number)
        batch.rows.append(row)
        if len(batch.rows) + len(unreadable) >= BATCH_ROWS:
            batch.rejections += unreadable
            unreadable.clear()
            yield batch
            batch = Batch()
    batch.rejections += unreadable
    if batch.rows or batch.rejections:
        yield batch


def _unreadable_line(file: str, number: int, error: DataError) -> Rejection:
    expected = "an object or a string in valid JSON on one line"
    reason = str(error).removeprefix(f"{Path(file).expanduser()}:{number}: ")
    return Rejection(file=file, row=number, field="line", reason="unreadable line", value=reason, expected=expected)
