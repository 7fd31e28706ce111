"""Rows of a dataset under a column mapping (`schemas.rows.column_map`), one by one or as a file.

A recipe's `data.map` is applied once for each content of a file: what training reads, and what an
error names, is the mapped file, row by row the source's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.data.prepare.fingerprint import fingerprint
from rl_core.data.read.files.parquet_files import open_parquet
from rl_core.data.read.files.parquet_rows import write_parquet_rows
from rl_core.data.read.files.text_files import NOT_MAPPED
from rl_core.data.read.formats import PARQUET, format_of
from rl_core.data.read.readers import check_file, raw_values
from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import DataError
from schemas.rows.column_map import ColumnMap, ColumnMapError

if TYPE_CHECKING:
    from rl_core.data.read.files.text_files import OnBadLine, RawValue

Row = dict[str, Any]
_VERSION = "1"
_NUM_LOOKED_AT = 20


def source_rows(
    file: Path,
    mapping: ColumnMap,
    prompt_key: str = "prompt",
    on_bad_line: OnBadLine | None = None,
) -> Iterator[RawValue]:
    """The rows of one file that a mapping is to be applied to.

    Args: on_bad_line: receives what cannot be read; unset, it is an error. Raises: DataError for a
    file as `raw_values`, or one that has no column of that name.
    """
    if mapping:
        _check_columns(file, mapping)
    yield from raw_values(file, prompt_key=prompt_key, on_bad_line=on_bad_line)


def mapped_row(mapping: ColumnMap, row: Row, place: str, over: Row | None = None) -> Row:
    """A row under the mapping. Args as `ColumnMap.apply`. Raises: DataError naming `place`."""
    try:
        return mapping.apply(row, over)
    except ColumnMapError as error:
        raise DataError(f"{place}: {error}") from error


def mapped_files(files: Sequence[Path], mapping: ColumnMap, data_dir: Path) -> list[Path]:
    """Each file under the mapping, made on first use and then kept; itself where that is empty.

    A row that the mapping does not fit is a bad row of its file, except in a table with pictures.
    Raises: DataError for a file without a mapped column; for a row of a table with pictures.
    """
    made = planned_mapped(files, mapping, data_dir)
    for file, target in zip(files, made, strict=True):
        if not target.is_file():
            _make(file, mapping, target)
    return made


def planned_mapped(files: Sequence[Path], mapping: ColumnMap, data_dir: Path) -> list[Path]:
    """Return the paths that `mapped_files` gives the files, without making them."""
    if not mapping:
        return list(files)
    return [_planned(file, mapping, data_dir) for file in files]


def _planned(file: Path, mapping: ColumnMap, data_dir: Path) -> Path:
    parts = [_VERSION, mapping.expressions, fingerprint(file, data_dir / "memo").sha256]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
    suffix = ".parquet" if _has_bytes(file) else ".jsonl"
    return data_dir / "mapped" / f"{file.stem}-{digest}{suffix}"


def _make(file: Path, mapping: ColumnMap, target: Path) -> None:
    if target.suffix == ".parquet":
        rows = (
            mapped_row(mapping, _as_row(raw.value), f"{file}:{raw.number}")
            for raw in source_rows(file, mapping)
        )
        write_parquet_rows(list(rows), target)
        return
    with atomic_writer(target) as out:

        def refuse(_: int, error: DataError) -> None:
            # Read back, it is a bad row of its file, which the recipe's on_invalid decides about.
            out.write(f"{NOT_MAPPED}{' '.join(str(error).split())}\n")

        for raw in source_rows(file, mapping, on_bad_line=refuse):
            try:
                row = mapped_row(mapping, _as_row(raw.value), f"{file}:{raw.number}")
            except DataError as error:
                refuse(raw.number, error)
            else:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")


def _check_columns(file: Path, mapping: ColumnMap) -> None:
    known = _column_names(file)
    for column in sorted(mapping.columns):
        if column not in known and column.split(".")[0] not in known:
            raise DataError(f"{file}: no column {column!r} to map (there are: {', '.join(known)})")


def _column_names(file: Path) -> list[str]:
    if format_of(check_file(file)) == PARQUET:
        with open_parquet(file) as table:
            return list(table.schema_arrow.names)
    first = islice(raw_values(file, on_bad_line=lambda *_: None), _NUM_LOOKED_AT)
    return list(dict.fromkeys(name for raw in first for name in _as_row(raw.value)))


def _has_bytes(file: Path) -> bool:
    if format_of(file) != PARQUET:
        return False
    with open_parquet(file) as table:
        return "binary" in str(table.schema_arrow)


def _as_row(value: Any) -> Row:
    if isinstance(value, str):
        return {"prompt": value}
    return dict(value)
