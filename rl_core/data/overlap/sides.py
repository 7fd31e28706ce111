"""Rows of files as they are compared: training rows, held-out rows and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from rl_core.data.check.contracts import recognise
from rl_core.data.overlap.rows import Row, Rows
from rl_core.data.prepare.fingerprint import fingerprint
from rl_core.data.read.readers import normalise, raw_values
from rl_core.data.read.remote import base_of
from rl_core.data.read.unpaired_rows import paired
from rl_core.errors import DataError
from schemas.rows.contract import SchemaName
from schemas.rows.conversation_rows import conversation_row
from schemas.rows.preference_rows import PreferencePair, preference_pair

Sides: TypeAlias = tuple[list[Rows], list[Rows]]
"""Training rows, and the rows that the model is measured on: held-out rows and benchmarks."""


def sides_of(
    train: Sequence[Path | str],
    held_out: Sequence[Path | str],
    benchmarks: Sequence[Path | str],
    memo_dir: Path | str,
    *,
    prompt_key: str = "prompt",
    schema: SchemaName | None = None,
    media_root: Path | None = None,
) -> Sides:
    """Return the rows of training files, and those that they are compared with.

    Args: as for `rows_of`; benchmarks have contracts and folders of their own.
    """
    trained, measured = (
        rows_of(files, memo_dir, prompt_key=prompt_key, schema=schema, media_root=media_root)
        for files in (train, held_out)
    )
    return trained, [*measured, *rows_of(benchmarks, memo_dir, benchmark=True)]


def rows_of(
    files: Sequence[Path | str],
    memo_dir: Path | str,
    *,
    prompt_key: str = "prompt",
    schema: SchemaName | None = None,
    media_root: Path | None = None,
    benchmark: bool = False,
) -> list[Rows]:
    """Return the rows of files; those that cannot be read are left out, as validation refuses them.

    Args: schema: contract of the rows; unset recognises it. media_root: where relative paths of
    pictures begin; unset is each file's own folder.
    Raises: DataError when there is no such file.
    """
    sides: list[Rows] = []
    for file in files:
        sides.append(_rows_of(str(file), memo_dir, prompt_key, schema, media_root, benchmark))
    return sides


def row_of_pair(pair: PreferencePair) -> dict[str, object]:
    """Return what a pair asks, as a row."""
    return {"prompt": pair.prompt, "images": list(pair.images)}


def _rows_of(
    file: str,
    memo_dir: Path | str,
    prompt_key: str,
    schema: SchemaName | None,
    media_root: Path | None,
    benchmark: bool,
) -> Rows:
    folder = media_root or base_of(Path(file))
    digest = fingerprint(file, memo_dir).sha256
    kind = schema or recognise(file, prompt_key=prompt_key)

    def read() -> Iterator[tuple[int, Row]]:
        if kind is SchemaName.PREFERENCE:
            return _pairs(file, folder)
        if kind is SchemaName.CONVERSATION:
            return _conversations(file)
        values = raw_values(file, prompt_key=prompt_key, on_bad_line=lambda *_: None)
        return ((raw.number, normalise(raw.value, prompt_key)) for raw in values)

    return Rows(file, read, folder, f"{digest} {kind} {prompt_key} {folder}", benchmark)


def _conversations(file: str) -> Iterator[tuple[int, Row]]:
    for raw in raw_values(file, on_bad_line=lambda *_: None):
        if isinstance(raw.value, str):
            continue
        try:
            yield raw.number, conversation_row(raw.value)
        except ValueError:
            continue  # validation refuses it


def _pairs(file: str, folder: Path | str) -> Iterator[tuple[int, Row]]:
    values = raw_values(file, on_bad_line=lambda *_: None)
    for raw in paired(values, file, lambda *_: None):
        if isinstance(raw.value, str):
            continue
        try:
            pair = preference_pair(
                raw.value, folder=folder, place=f"{file}:{raw.number}", needs_image=False
            )
        except DataError:
            continue  # validation refuses it
        yield raw.number, row_of_pair(pair)
