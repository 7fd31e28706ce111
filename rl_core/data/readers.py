"""Rows of any file format, one at a time, normalised.

| format     | rule |
|------------|------|
| `.txt`     | one prompt per non-empty line |
| `.jsonl`   | one object or string per non-empty line |
| `.json`    | a list of strings or objects, or a dict with such a list under the prompt key, `prompts` or `caption` |
| `.parquet` | streamed; nulls that Arrow added to make structs alike are dropped again |

A string, as a row or as its prompt, becomes one user message. Nothing else is converted: a ground truth keeps the
type that was written.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl_core.errors import DataError

NumberedRow = tuple[int, dict[str, Any]]
OnBadLine = Callable[[int, DataError], None]
"""Called with the line number and the error of a JSON line that cannot be read."""

_PARQUET_BATCH = 1024


def read_rows(
    path: Path | str, *, prompt_key: str = "prompt", on_bad_line: OnBadLine | None = None
) -> Iterator[NumberedRow]:
    """Yield `(row_number, row)`; numbers count from 1 and are line numbers in `.txt` and `.jsonl`.

    Args: prompt_key: the column that becomes `prompt`. on_bad_line: takes unreadable JSON lines, which otherwise
    raise.
    Raises: DataError for a missing, empty or unreadable file, or an extension that is not listed above.
    """
    file = Path(path).expanduser()
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown extension {file.suffix!r}; expected one of {', '.join(_READERS)}")
    if not file.is_file():
        raise DataError(f"{path}: {'is a folder' if file.is_dir() else 'no such file'}; give the path of a data file")
    num_rows = 0
    try:
        for number, value in reader(file, prompt_key, on_bad_line):
            num_rows += 1
            yield number, _normalise(value, prompt_key)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error}); save the file as UTF-8") from error
    if not num_rows and on_bad_line is None:
        raise DataError(f"{path}: the file is empty; expected at least one row")


def _read_txt(file: Path, _prompt_key: str, _on_bad_line: OnBadLine | None) -> Iterator[tuple[int, Any]]:
    yield from _lines(file)


def _read_jsonl(file: Path, _prompt_key: str, on_bad_line: OnBadLine | None) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(file):
        try:
            yield number, _parse_line(line, f"{file}:{number}")
        except DataError as error:
            if on_bad_line is None:
                raise
            on_bad_line(number, error)


def _read_json(file: Path, prompt_key: str, _on_bad_line: OnBadLine | None) -> Iterator[tuple[int, Any]]:
    try:
        document = json.loads(file.read_text(encoding="utf-8-sig") or "[]")
    except json.JSONDecodeError as error:
        raise DataError(f"{file}:{error.lineno}: invalid JSON at column {error.colno} ({error.msg})") from error
    for index, value in enumerate(_row_list(document, file, prompt_key), start=1):
        if not isinstance(value, str | dict):
            raise DataError(f"{file}: row {index} is {_name(value)}; expected an object or a string")
        yield index, value


def _read_parquet(file: Path, _prompt_key: str, _on_bad_line: OnBadLine | None) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as table:
            batches = (batch for batch in table.iter_batches(batch_size=_PARQUET_BATCH))
            rows = (row for batch in batches for row in batch.to_pylist())
            for index, row in enumerate(rows, start=1):
                yield index, _without_nulls(row)
    except pa.ArrowException as error:
        raise DataError(f"{file}: not a readable Parquet file ({error})") from error


_READERS = {".txt": _read_txt, ".jsonl": _read_jsonl, ".json": _read_json, ".parquet": _read_parquet}


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line.strip()


def _parse_line(line: str, place: str) -> str | dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: invalid JSON at column {error.colno} ({error.msg})") from error
    if not isinstance(value, str | dict):
        raise DataError(f"{place}: the line is {_name(value)}; expected an object or a string")
    return value


def _row_list(document: Any, file: Path, prompt_key: str) -> list[Any]:
    if isinstance(document, list):
        return document
    keys = list(dict.fromkeys((prompt_key, "prompts", "caption")))
    found = [key for key in keys if isinstance(document, dict) and isinstance(document.get(key), list)]
    if not found:
        expected = f"a list of strings or objects, or an object with such a list under {' or '.join(keys)}"
        raise DataError(f"{file}: the top level is {_name(document)}; expected {expected}")
    return document[found[0]]


def _normalise(value: str | dict[str, Any], prompt_key: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"prompt": _user_message(value)}
    row = dict(value)
    if prompt_key != "prompt" and prompt_key in row:
        row["prompt"] = row.pop(prompt_key)
    if isinstance(row.get("prompt"), str):
        row["prompt"] = _user_message(row["prompt"])
    return row


def _user_message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
