"""Rows of `.txt`, `.jsonl`, `.ndjson` and `.json` files: UTF-8 with or without a BOM, any newlines.

The content decides between a list, an object and JSON Lines, whatever the suffix is. A line that
cannot be read (bad JSON, invalid UTF-8, a lone surrogate, which no tokenizer accepts) is passed to
`on_bad_line`; reading continues after it.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rl_core.data.read.files.compressed import opened_bytes, opened_text
from rl_core.data.read.files.json_stream import UnreadableJson, is_list, list_values, parse
from rl_core.errors import DataError

OnBadLine = Callable[[int, DataError], None]
"""Callback that receives the number and the error of a row that cannot be read."""


_NO_TEXT = {
    b"PAR1": ".parquet",
    b"ARRO": ".arrow",
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"\xfd7zX": ".xz",
    b"PK\x03\x04": ".zip",
}
"""First bytes of formats that are no text, and their names."""


NOT_MAPPED = "# not mapped: "
"""Begin of the line that stands for a row which a column mapping does not fit, before the reason;
no JSON begins so."""


class RawValue(NamedTuple):
    """A row as written in the file."""

    number: int
    value: Any
    num_bytes: int
    """Approximate size of the row in memory."""
    is_doubtful: bool = True
    """False if a look at whole columns has found the row good."""


def read_txt(file: Path, _prompt_key: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield one prompt per non-empty line, or the rows of a file whose first line is an object."""
    if _begins_with_object(file):
        yield from read_jsonl(file, _prompt_key, on_bad_line)
        return
    for number, line in _lines(file, on_bad_line):
        yield RawValue(number, line, len(line))


def read_jsonl(file: Path, prompt_key: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield one object or string per non-empty line, or the items of a list."""
    refuse_other_encodings(file)
    if is_list(file):
        yield from read_json(file, prompt_key, on_bad_line)
        return
    for number, line in _lines(file, on_bad_line):
        try:
            if line.startswith(NOT_MAPPED):
                raise UnreadableJson(line.removeprefix(NOT_MAPPED))
            value = parse(line)
            if not isinstance(value, str | dict):
                raise UnreadableJson(f"the line is {_name(value)}; expected an object or a string")
            check_text(line, value)
        except DataError as error:
            on_bad_line(number, DataError(f"{file}:{number}: {error}"))
        else:
            yield RawValue(number, value, len(line))


def read_json(file: Path, prompt_key: str, on_bad_line: OnBadLine) -> Iterator[RawValue]:
    """Yield the items of a list of objects or strings, of an object with such a list, or one
    object; or an object or string per line."""
    refuse_other_encodings(file)
    if is_list(file):
        values = ((value, len(source), source) for value, source in list_values(file))
    elif _is_json_lines(file):
        yield from read_jsonl(file, prompt_key, on_bad_line)
        return
    else:
        with opened_text(file) as opened:
            text = opened.read()
        try:
            document = parse(text) if text.strip() else []
        except UnreadableJson as error:
            raise UnreadableJson(f"{file}: {error}") from error
        rows = _row_list(document, file, prompt_key)
        values = ((value, len(text) // max(1, len(rows)), text) for value in rows)
    for number, (value, size, source) in enumerate(values, start=1):
        try:
            if isinstance(value, UnreadableJson):
                raise value
            if not isinstance(value, str | dict):
                raise UnreadableJson(
                    f"row {number} is {_name(value)}; expected an object or a string"
                )
            check_text(source, value)
        except DataError as error:
            on_bad_line(number, DataError(f"{file}:{number}: {error}"))
        else:
            yield RawValue(number, value, size)


def _is_json_lines(file: Path) -> bool:
    """Return True if the first line is a whole value and others follow it."""
    with opened_text(file) as text:
        lines = (line for line in text if line.strip())
        return _is_value(next(lines, "")) and next(lines, None) is not None


def _begins_with_object(file: Path) -> bool:
    refuse_other_encodings(file)
    with opened_text(file) as text:
        first = next((line for line in text if line.strip()), "")
    return first.lstrip().startswith("{") and _is_value(first)


def _is_value(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def check_text(source: str, value: object) -> None:
    """Refuse text that no UTF-8 file can hold. Raises: UnreadableJson.

    Args: source: the text that `value` was parsed from, in which a quick search excludes most
    problems.
    """
    if source.isascii() and "\\ud" not in source and "\\uD" not in source:
        return
    if (found := _surrogate_in(value)) is not None:
        if 0xDC80 <= found <= 0xDCFF and chr(found) in source:
            raise UnreadableJson(
                f"byte 0x{found - 0xDC00:02x} is not UTF-8; save the file as UTF-8"
            )
        raise UnreadableJson(f"\\u{found:04x} is half a surrogate pair, which is no character")


def _lines(file: Path, on_bad_line: OnBadLine) -> Iterator[tuple[int, str]]:
    refuse_other_encodings(file)
    with opened_text(file) as lines:
        for number, line in enumerate(lines, start=1):
            stripped = line.strip()
            if not stripped:
                continue
            if not stripped.isascii():
                try:
                    check_text(stripped, stripped)
                except DataError as error:
                    on_bad_line(number, DataError(f"{file}:{number}: {error}"))
                    continue
            yield number, stripped


def refuse_other_encodings(file: Path) -> None:
    """Raises: DataError for a file that is not UTF-8 text, by its first bytes."""
    with opened_bytes(file) as raw:
        head = raw.read(4)
    for magic, kind in _NO_TEXT.items():
        if head.startswith(magic):
            raise DataError(f"{file}: its content is {kind}, not text; name it *{kind}")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head:
        raise DataError(
            f"{file}: not UTF-8 (it looks like UTF-16 or UTF-32); save the file as UTF-8"
        )


def _row_list(document: object, file: Path, prompt_key: str) -> list[object]:
    """Return the rows of a document that is an object: a list in it, or the object itself."""
    keys = list(dict.fromkeys((prompt_key, "prompts", "caption", "prompt")))
    if isinstance(document, dict):
        for key in ("prompts", *keys):
            value = document.get(key)
            if isinstance(value, list) and not _is_conversation(value):
                return value
            if key == "prompts" and isinstance(value, str):
                return [value]
        if (
            any(key in document for key in keys if key != "prompts")
            or "responses_create_params" in document
        ):
            return [document]
    elif isinstance(document, list):
        return document
    expected = (
        "a list of strings or objects, or an object with such a list or a text under "
        f"{' or '.join(keys)}"
    )
    raise DataError(f"{file}: the top level is {_name(document)}; expected {expected}")


def _is_conversation(value: list[object]) -> bool:
    return bool(value) and all(
        isinstance(item, dict) and {"role", "content"} <= item.keys() for item in value
    )


def _surrogate_in(value: object) -> int | None:
    """Return the first lone surrogate in any string of a value, or None."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return ord(value[error.start])
        return None
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if not isinstance(parts, list):
        return None
    return next((found for part in parts if (found := _surrogate_in(part)) is not None), None)


def _name(value: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        type(None): "null",
    }
    return names.get(type(value), "a number")
