"""Rows of `.csv` and `.tsv` files: the first line names the columns, and every value stays the text
that was written."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from rl_core.data.read.files.compressed import opened_text
from rl_core.data.read.files.json_stream import UnreadableJson
from rl_core.data.read.files.text_files import (
    OnBadLine,
    RawValue,
    check_text,
    refuse_other_encodings,
)
from rl_core.errors import DataError


def read_csv(file: Path, _prompt_key: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield one object per record of a file with commas; its number is its first line's."""
    return _read(file, ",", on_bad_line)


def read_tsv(file: Path, _prompt_key: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield one object per record of a file with tabs; its number is its first line's."""
    return _read(file, "\t", on_bad_line)


def _read(file: Path, delimiter: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    refuse_other_encodings(file)
    csv.field_size_limit(sys.maxsize)  # the default refuses a text of 128 kB
    with opened_text(file, newline="") as text:
        records = csv.reader(text, delimiter=delimiter, strict=True)
        names: list[str] | None = None
        number = 1
        try:
            for values in records:
                if values and names is None:
                    names = _checked_names(values, file)
                elif values and names is not None:
                    try:
                        yield RawValue(number, _row(names, values), sum(map(len, values)))
                    except UnreadableJson as error:
                        on_bad_line(number, DataError(f"{file}:{number}: {error}"))
                number = records.line_num + 1
        except csv.Error as error:
            raise DataError(
                f"{file}:{number}: not readable as a table ({error}); expected values with "
                f"{'commas' if delimiter == ',' else 'tabs'} between them, in double quotes where "
                "they hold one or a line break"
            ) from error


def _checked_names(names: list[str], file: Path) -> list[str]:
    if any(not name.strip() for name in names) or len(set(names)) != len(names):
        raise DataError(
            f"{file}: the first line names the columns, each with a name of its own; got "
            f"{', '.join(map(repr, names))}"
        )
    check_text("".join(names), names)
    return names


def _row(names: list[str], values: list[str]) -> dict[str, str]:
    if len(values) != len(names):
        raise UnreadableJson(f"{len(values)} values for {len(names)} columns")
    check_text("".join(values), values)
    return dict(zip(names, values, strict=True))
