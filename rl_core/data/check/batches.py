"""Rows in batches of bounded size, each checked against its contract, for preparation and
validation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.data.check.columns import suspicious_rows
from rl_core.data.check.contracts import contract_of
from rl_core.data.check.trials import RowTrials, Tried
from rl_core.data.overlap.found import Overlaps
from rl_core.data.read.files.parquet_files import batch_values, record_batches
from rl_core.data.read.files.text_files import OnBadLine, RawValue
from rl_core.data.read.formats import PARQUET, format_of
from rl_core.data.read.readers import check_file, normalise, raw_values
from rl_core.data.read.unpaired_rows import paired
from rl_core.errors import DataError
from schemas.receipts import Rejection
from schemas.rows.contract import SchemaName
from schemas.rows.conversation_rows import conversation_row
from schemas.rows.ground_truth import AllowedEnvClasses

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4096
BATCH_BYTES = 32 * 2**20
Screen = Callable[["pa.RecordBatch"], list[int]]
"""Function that returns the places of the rows of an Arrow batch that only their contract can
judge."""


@dataclass
class Batch:
    """Rows of one file with their numbers, and the problems of the bad ones."""

    numbers: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    doubtful: set[int] = field(default_factory=set)
    """Numbers of the rows that their contract has yet to judge."""

    @property
    def num_rows(self) -> int:
        """Number of rows in the batch, good and bad, unreadable lines included."""
        return len(set(self.numbers) | self.rejected_numbers)

    @property
    def rejected_numbers(self) -> set[int]:
        """Numbers of the rows with at least one problem."""
        return {rejection.row for rejection in self.rejections}

    def accepted(self) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield the good rows and their numbers."""
        bad = self.rejected_numbers
        return ((n, row) for n, row in zip(self.numbers, self.rows, strict=True) if n not in bad)

    def try_rows(
        self, trials: RowTrials, file: str, oracle_stride: int = 0, *, named_alone: bool = False
    ) -> Tried:
        """Try the good rows with their environments, and add those that are refused to
        `rejections`.

        Args: named_alone: leave out rows that name no environment.
        """
        good = []
        for one in self.accepted():
            if not named_alone or "env_class" in one[1]:
                good.append(one)
        numbers, rows = [number for number, _ in good], [row for _, row in good]
        tried = trials(rows, numbers, file, oracle_stride)
        self.rejections += tried.rejections
        return tried


def checked_batches(
    path: Path | str,
    *,
    allowed_env_classes: AllowedEnvClasses,
    default_env_class: str | None,
    prompt_key: str = "prompt",
    overlaps: Overlaps | None = None,
    trials: RowTrials | None = None,
    schema: SchemaName = SchemaName.PROMPT,
) -> Iterator[Batch]:
    """Read a file of prompt or conversation rows in batches; unreadable lines are rejections like
    any other.

    Args: overlaps: rows that repeat held-out rows, which no row of this file may ask. trials: tries
    the rows that passed their contract; unset tries none. schema: contract of the rows;
    conversations that passed it become prompt rows with their `completion`.
    Raises: DataError when the file as a whole cannot be read, or is empty.
    """
    contract = contract_of(schema, path, allowed_env_classes, default_env_class)
    converses = schema is SchemaName.CONVERSATION

    def screen(batch: "pa.RecordBatch") -> list[int]:
        return suspicious_rows(batch, allowed_env_classes, default_env_class, prompt_key)

    is_screened = schema is SchemaName.PROMPT and format_of(Path(path)) == PARQUET
    num_seen = 0
    for batch in raw_batches(path, prompt_key, screen=screen if is_screened else None):
        batch.rows = [
            _as_object(row) if converses else normalise(row, prompt_key) for row in batch.rows
        ]
        judged = []
        for number, row in zip(batch.numbers, batch.rows, strict=True):
            if number in batch.doubtful:
                judged.append((number, row))
        batch.rejections += contract.validate(
            [row for _, row in judged], file=str(path), row_numbers=[number for number, _ in judged]
        )
        if converses:
            bad = batch.rejected_numbers
            batch.rows = [
                row if number in bad else conversation_row(row, default_env_class)
                for number, row in zip(batch.numbers, batch.rows, strict=True)
            ]
        if overlaps is not None:
            batch.rejections += overlaps.rejections(path, batch.numbers)
        if trials is not None:
            batch.try_rows(trials, str(path), named_alone=converses)
        batch.rejections.sort(key=lambda rejection: rejection.row)
        num_seen += batch.num_rows
        yield batch
    if not num_seen:
        raise DataError(f"{path}: the file is empty; expected at least one row")


def _as_object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"prompt": value}
    return dict(value)


def raw_batches(
    path: Path | str,
    prompt_key: str = "prompt",
    *,
    pairs: bool = False,
    screen: Screen | None = None,
) -> Iterator[Batch]:
    """Yield the raw values of a file in batches of at most `BATCH_ROWS` rows and about
    `BATCH_BYTES` bytes.

    Args: pairs: the rows are pairs, or answers that may be paired. screen: applied to a Parquet
    file; the rows it finds good are not `doubtful`.
    """
    bad_lines: list[Rejection] = []

    def on_bad_line(number: int, error: DataError) -> None:
        reason = str(error).removeprefix(f"{Path(path).expanduser()}:{number}: ")
        bad_lines.append(unreadable(str(path), number, reason))

    batch, size = Batch(), 0
    if screen is None:
        values = raw_values(path, prompt_key=prompt_key, on_bad_line=on_bad_line)
    else:
        values = _screened(check_file(path), screen, on_bad_line)
    for raw in paired(values, str(Path(path).expanduser()), on_bad_line) if pairs else values:
        _add(batch, raw)
        size += raw.num_bytes
        if len(batch.rows) + len(bad_lines) >= BATCH_ROWS or size >= BATCH_BYTES:
            batch.rejections += bad_lines
            bad_lines.clear()
            yield batch
            batch, size = Batch(), 0
    batch.rejections += bad_lines
    if batch.rows or batch.rejections:
        yield batch


def _screened(file: Path, screen: Screen, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield the rows of a Parquet file, those that the screen finds good as such."""
    first = 1
    for batch in record_batches(file):
        doubtful = {first + place for place in screen(batch)}
        for raw in batch_values(batch, first, file, on_bad_line):
            yield raw._replace(is_doubtful=raw.number in doubtful)
        first += batch.num_rows


def _add(batch: Batch, raw: RawValue) -> None:
    batch.numbers.append(raw.number)
    batch.rows.append(raw.value)
    if raw.is_doubtful:
        batch.doubtful.add(raw.number)


def unreadable(file: str, row: int, reason: str) -> Rejection:
    """Return the rejection of a row that could not be read."""
    expected = "an object or a string in valid JSON on one line"
    return Rejection(
        file=file, row=row, field="line", reason="unreadable line", value=reason, expected=expected
    )
