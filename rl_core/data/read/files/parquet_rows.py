"""Rows written as a Parquet file, if they come back from it as they are."""

from pathlib import Path

from rl_core.data.read.files.parquet_files import without_nulls
from rl_core.data.store.atomic import storage_error
from rl_core.errors import DataError

Row = dict[str, object]


def write_parquet_rows(rows: list[Row], target: Path) -> int:
    """Write the rows, whole or not at all. Returns: how many.

    Raises: DataError where a column has several types, or a row would come back as another one;
    StorageError when the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # `Table.from_pylist` knows the first row's columns only.
        names = list(dict.fromkeys(name for row in rows for name in row))
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise DataError(
            f"{target}: Parquet needs one type per column ({error}); write .jsonl instead"
        ) from error
    for number, (row, back) in enumerate(zip(rows, table.to_pylist(), strict=True), start=1):
        # Texts, since 1 and 1.0 are equal and are not the same.
        if repr(_ordered(without_nulls(back))) != repr(_ordered(without_nulls(row))):
            raise DataError(
                f"{target}: row {number} would not come back from Parquet as it is; write .jsonl "
                "instead"
            )
    building = target.with_name(f".{target.name}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, building)
        building.replace(target)
    except OSError as error:
        raise storage_error(target, error) from error
    finally:
        building.unlink(missing_ok=True)
    return len(rows)


def _ordered(value: object) -> object:
    """A struct of Arrow has an order of its own."""
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value
