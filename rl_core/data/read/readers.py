"""Rows of any file format, one at a time, normalised.

| format     | rule |
|------------|------|
| `.txt`     | one prompt per non-empty line |
| `.jsonl`   | one object or string per non-empty line; `.ndjson` is the same |
| `.json`    | a list of strings or objects, an object with such a list under `prompts`,  |
|            | `caption` or the prompt key, or an object that is itself the one row; or   |
|            | JSON Lines, which `.txt` may hold too |
| `.csv`     | a record per row, its columns named by the first line, all values texts;   |
|            | `.tsv` is the same with tabs |
| `.parquet` | streamed by row group; nulls that Arrow added to structs are dropped again |
| `.arrow`   | a stream, as `datasets` saves it, or a file |
| a name     | a Hugging Face dataset, see `rl_core.data.read.sources` |

A string, as a row or as its prompt, becomes one user message, unless it is a list of messages as
JSON text, which is read. The role `developer` becomes `system`, parts of text one text. A response
row (what `rl-train prep -c text` publishes) becomes a prompt row. Nothing else is converted: a
ground truth keeps the type that was written, an integer all its digits.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rl_core.data.read.files.text_files import OnBadLine, RawValue
from rl_core.data.read.formats import KNOWN, READERS, format_of
from rl_core.data.read.sources import data_files
from rl_core.errors import DataError
from rl_core.runtime.user_paths import no_file
from schemas.rows.messages import messages_of_text, plain_messages
from schemas.rows.problems import as_list
from schemas.rows.response_rows import PARAMS, as_prompt_row

NumberedRow = tuple[int, dict[str, object]]


def read_rows(
    path: Path | str, *, prompt_key: str = "prompt", on_bad_line: OnBadLine | None = None
) -> Iterator[NumberedRow]:
    """Yield `(row_number, row)` of a file, glob, folder or dataset name.

    Numbers count from 1 within each file and are line numbers in `.txt` and `.jsonl`.

    Args: prompt_key: the column that becomes `prompt`. on_bad_line: receives unreadable rows, which
    otherwise raise.
    Raises: DataError for a missing, empty or unreadable file, or an extension that is not listed
    above.
    """
    for file in data_files(str(path)):
        for raw in raw_values(file, prompt_key=prompt_key, on_bad_line=on_bad_line):
            yield raw.number, normalise(raw.value, prompt_key)


def raw_values(
    path: Path | str, *, prompt_key: str = "prompt", on_bad_line: OnBadLine | None = None
) -> Iterator[RawValue]:
    """Yield the rows of one file as written, strings still strings. Args and errors as in
    `read_rows`."""
    file = check_file(path)
    num_rows = 0
    read = READERS[format_of(file) or ""]
    for raw in read(file, prompt_key, on_bad_line or raise_it):
        num_rows += 1
        yield raw
    if not num_rows and on_bad_line is None:
        raise DataError(f"{path}: the file is empty; expected at least one row")


def check_file(path: Path | str) -> Path:
    """Return the path of a data file that a reader supports. Raises: DataError when it does not
    exist or has another extension."""
    file = Path(path).expanduser()
    if format_of(file) is None:
        expected = f"expected one of {KNOWN}, or the name of a Hugging Face dataset"
        raise DataError(f"{path}: unknown extension {file.suffix!r}; {expected}")
    if not file.is_file():
        raise DataError(f"{path}: {no_file(path)}; give the path of a data file")
    return file


def normalise(value: str | dict[str, Any], prompt_key: str = "prompt") -> dict[str, object]:
    """Convert a raw value to a prompt row."""
    if isinstance(value, str):
        return {"prompt": messages_of_text(value)}
    row = dict(value)
    if prompt_key != "prompt" and prompt_key in row:
        row["prompt"] = row.pop(prompt_key)
    if "prompt" not in row and PARAMS in row:
        return as_prompt_row(row)
    if isinstance(row.get("prompt"), str):
        row["prompt"] = messages_of_text(row["prompt"])
    if (messages := as_list(row.get("prompt"))) is not None:
        row["prompt"] = plain_messages(messages)
    return row


def raise_it(_number: int, error: DataError) -> None:
    """The `on_bad_line` of a reader to which none was given."""
    raise error
