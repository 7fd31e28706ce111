"""Rows of a text-RL blend that only refer to another dataset: `_hf_placeholder` names a row of a
table.

`{"dataset": <table>, "_hf_placeholder": {"row": 7, "question_template": ...}}` becomes a complete
row: the question from the table, between the template's `prefix` and `suffix` or in place of
`{question}`, and the answer as text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from rl_core.data.read.readers import raw_values
from rl_core.data.read.sources import data_files
from rl_core.errors import DataError
from rl_core.runtime.registry import PluginConfig
from schemas.rows.media_checks import is_remote
from schemas.rows.problems import as_list, get
from schemas.rows.response_rows import PARAMS

KEY = "_hf_placeholder"
UNRESOLVED = "unresolved_placeholder"


class TableConfig(PluginConfig):
    """Location of a table's rows, and of question and answer in a row."""

    path: str
    """A file, folder, address, or dataset name (`owner/name`)."""
    split: str = "train"
    """Split of a dataset name."""
    revision: str | None = None
    """Commit, tag or branch of a dataset name."""
    question: list[str | int] = Field(default=["prompt", 0, "content"])
    """Keys and positions that lead to the question."""
    answer: list[str | int] = Field(default=["reward_model", "ground_truth"])
    """Keys and positions that lead to the answer."""

    def files(self, folder: Path, *, download: bool) -> list[Path]:
        """Return the table's files. Raises: DataError when they are not on this machine and may not
        be fetched."""
        if is_remote(self.path):
            return data_files(self.path, download=download)
        if (folder / self.path).exists():
            return data_files(folder / self.path)
        if Path(self.path).expanduser().exists():
            return data_files(self.path)
        return data_files(
            {"path": self.path, "split": self.split, "revision": self.revision}, download=download
        )


def is_placeholder(row: Mapping[str, object]) -> bool:
    """Return True if a row refers to a table; a null in that column, as a union of datasets leaves
    it, does not."""
    return row.get(KEY) is not None


def placeholder_of(row: Mapping[str, object]) -> tuple[str, int] | None:
    """Return the table and row that a placeholder names, or None if it names none."""
    name, pointer = row.get("dataset"), row.get(KEY)
    number = pointer.get("row") if isinstance(pointer, Mapping) else None
    valid = (
        isinstance(name, str)
        and isinstance(number, int)
        and not isinstance(number, bool)
        and number >= 0
    )
    if valid:
        return (str(name), int(number or 0))
    return None


def fetch_rows(
    files: Sequence[Path], table: TableConfig, wanted: Iterable[int]
) -> dict[int, tuple[str, str]]:
    """Return question and answer of the wanted rows (from 0) of a table; rows without both are left
    out."""
    missing, found, number = set(wanted), {}, -1
    for file in files:
        for raw in raw_values(file, on_bad_line=lambda *_: None):
            number += 1
            if number not in missing:
                continue
            question, answer = (_follow(raw.value, path) for path in (table.question, table.answer))
            if isinstance(question, str) and question.strip() and answer is not None:
                found[number] = (question, _as_text(answer))
            missing.discard(number)
            if not missing:
                return found
    return found


def resolve(row: Mapping[str, Any], found: Mapping[int, tuple[str, str]]) -> dict[str, object]:
    """Return the complete row. Raises: DataError saying what the table lacks."""
    pointer = placeholder_of(row)
    if pointer is None:
        raise DataError(
            f"field {KEY}: {row.get(KEY)!r} of dataset {row.get('dataset')!r}; expected a table "
            "and a row"
        )
    if pointer[1] not in found:
        raise DataError(
            f"field {KEY}: table {pointer[0]!r} has no question and answer in row {pointer[1]}"
        )
    question, answer = found[pointer[1]]
    text = fill_template(row[KEY].get("question_template"), question)
    params = dict(get(row, PARAMS) or {})
    # Instructions that came with the row stay; only the question was missing.
    kept = []
    for m in as_list(params.get("input")) or []:
        if get(m, "role") in ("system", "developer"):
            kept.append(m)
    params["input"] = [*kept, {"role": "user", "content": text}]
    rest = {key: value for key, value in row.items() if key != KEY}
    return {**rest, "question": text, "expected_answer": answer, PARAMS: params}


def fill_template(template: object, question: str) -> str:
    """Insert the question into its template: `{prefix, suffix}` or a text with `{question}`;
    without one, return it unchanged."""
    if isinstance(template, Mapping):
        return f"{get(template, 'prefix') or ''}{question}{get(template, 'suffix') or ''}"
    if isinstance(template, str) and "{question}" in template:
        return template.replace("{question}", question)
    if template is None or template == "":
        return question
    raise DataError(
        f"field {KEY}.question_template: {template!r}; expected prefix and suffix, or a text "
        "with {question}"
    )


def _follow(value: object, path: Sequence[str | int]) -> object:
    for key in path:
        items = as_list(value)
        if isinstance(key, int) and items is not None and 0 <= key < len(items):
            value = items[key]
        elif isinstance(value, Mapping):
            value = value.get(key)
        else:
            return None
    return value


def _as_text(answer: object) -> str:
    if isinstance(answer, str):
        return answer
    return json.dumps(answer, ensure_ascii=False)
