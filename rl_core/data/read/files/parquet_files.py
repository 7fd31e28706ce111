"""Rows of Parquet and Arrow files, streamed in batches of bounded size."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.data.read.files.text_files import OnBadLine, RawValue
from rl_core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MAX_BATCH_BYTES = 32 * 2**20
MAX_BATCH_ROWS = 32768
MIN_BATCH_ROWS = 16
_ARROW_FILE = b"ARROW1"
_LEAVES = {str, int, float, bool, bytes}


def read_parquet(file: Path, _prompt_key: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield one object per row; nulls that Arrow added to make structs alike are dropped again."""
    number = 1
    for batch in record_batches(file):
        yield from batch_values(batch, number, file, on_bad_line)
        number += batch.num_rows


def read_arrow(file: Path, _prompt_key: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield one object per row of an Arrow stream, as `datasets` saves it, or of an Arrow file.
    Raises: DataError when it is neither."""
    import pyarrow as pa

    number = 1
    try:
        with pa.memory_map(str(file)) as mapped:
            if mapped.read(len(_ARROW_FILE)) == _ARROW_FILE:
                table = pa.ipc.open_file(mapped)
                batches = (table.get_batch(index) for index in range(table.num_record_batches))
            else:
                mapped.seek(0)
                batches = iter(pa.ipc.open_stream(mapped))
            for batch in batches:
                yield from batch_values(batch, number, file, on_bad_line)
                number += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable Arrow file ({error})") from error


def record_batches(file: Path, groups: Sequence[int] | None = None) -> "Iterator[pa.RecordBatch]":
    """Yield the record batches of some row groups, or all, in order. Raises: DataError when the
    file cannot be read."""
    with open_parquet(file) as table:
        chosen = range(table.num_row_groups) if groups is None else groups
        for group in chosen:
            metadata = table.metadata.row_group(group)
            per_row = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
            rows = max(MIN_BATCH_ROWS, min(MAX_BATCH_ROWS, MAX_BATCH_BYTES // per_row))
            yield from table.iter_batches(batch_size=rows, row_groups=[group])


@contextmanager
def open_parquet(file: Path) -> "Iterator[pq.ParquetFile]":
    """Open a Parquet file; Arrow's errors about a damaged one become a DataError with its name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # A buffered stream keeps a row group's column chunks out of memory until they are decoded.
        with pq.ParquetFile(file, buffer_size=2**20, pre_buffer=False) as table:
            yield table
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable Parquet file ({error})") from error


def batch_values(
    batch: "pa.RecordBatch", first_number: int, file: Path, on_bad_line: OnBadLine
) -> Iterator[RawValue]:
    """Yield the rows of a batch as plain values, converted a few at a time; a map becomes an
    object."""
    size = batch.nbytes // max(1, batch.num_rows)
    step = max(1, min(1024, MAX_BATCH_BYTES // max(1, size)))
    plain = not any(_needs_cleaning(column) for column in batch.columns)
    for start in range(0, batch.num_rows, step):
        part = batch.slice(start, step)
        try:
            rows = part.to_pylist(maps_as_pydicts="strict")
        except (UnicodeDecodeError, KeyError):
            rows = list(_one_by_one(part, first_number + start, file, on_bad_line))
        for i, row in enumerate(rows, start=first_number + start):
            if row is not None:
                yield RawValue(i, row if plain else without_nulls(row), size)


def _needs_cleaning(array: "pa.Array") -> bool:
    """Return True if `without_nulls` may change a column; also True for unknown types."""
    import pyarrow as pa

    kind = array.type
    if array.null_count:
        return True
    if pa.types.is_struct(kind):
        return any(_needs_cleaning(array.field(index)) for index in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _needs_cleaning(array.values)
    strings = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    others = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return not (strings or others or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def without_nulls(value: object) -> object:
    """Return `value` without the keys that hold None, and with whole decimals (wide integers in
    Arrow) as integers."""
    if isinstance(value, dict):
        kept = {}
        for key, item in value.items():
            if item is not None:
                kept[key] = item if type(item) in _LEAVES else without_nulls(item)
        return kept
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        return int(value)
    return value


def _one_by_one(
    part: "pa.RecordBatch", first: int, file: Path, on_bad_line: OnBadLine
) -> Iterator[object]:
    for i in range(part.num_rows):
        try:
            yield part.slice(i, 1).to_pylist(maps_as_pydicts="strict")[0]
        except (UnicodeDecodeError, KeyError) as error:
            if isinstance(error, UnicodeDecodeError):
                said = f"a string is not UTF-8 ({error.reason})"
            else:
                said = "a map has a key twice"
            on_bad_line(first + i, DataError(f"{file}:{first + i}: {said}"))
            yield None
