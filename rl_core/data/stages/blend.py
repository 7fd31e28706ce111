"""A blend: the datasets of a training set, and the weight of each.

`{"datasets": [{name, path, weight, split, subset, text_field}]}` is split into train and val by a
hash of the prompt; `{"train": {"datasets": [...]}, "val": {"datasets": [...]}}` names the held-out
datasets itself, as does a `val` beside `datasets`. A weight is a number of passes: 2 takes every
row twice, 0.5 every second one by a hash of its content.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from rl_core.data.read.folders import has_card
from rl_core.data.read.sources import data_files
from rl_core.errors import DataError
from rl_core.runtime.registry import PluginConfig, describe_validation_error
from schemas.rows.media_checks import is_remote

_VALIDATION_NAMES = ("val", "validation", "valid", "eval", "test")


class Split(StrEnum):
    """Purpose of rows."""

    TRAIN = "train"
    """Rows to train on."""
    VAL = "val"
    """Held-out rows."""


class BlendEntry(PluginConfig):
    """One dataset of a blend."""

    name: str
    """Name of the dataset in counts and messages."""
    path: str
    """A file, glob or folder, relative to the blend file, or a dataset name (`owner/name`,
    `hf://owner/name`)."""
    weight: float = Field(default=1.0, ge=0)
    """Passes over the rows."""
    split: str | None = None
    """Split of a dataset name; in a folder, prefix of the files' names."""
    subset: str | None = None
    """Config of a dataset name."""
    revision: str | None = None
    """Commit, tag or branch of a dataset name."""
    text_field: str | None = None
    """Column with the prompt, for rows without `responses_create_params`."""


@dataclass(frozen=True)
class Part:
    """An entry and the purpose of its rows; None decides by the prompt's hash."""

    entry: BlendEntry
    split: Split | None


def read_blend(path: Path) -> list[Part]:
    """Read the parts of a blend file, held-out ones first. Raises: DataError naming entry and
    key."""
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); expected a blend in JSON"
        ) from error
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(document, Mapping):
        raise DataError(f'{path}: expected {{"datasets": [...]}}, or that for train and val each')
    sections = dict(document)
    if "datasets" in sections:
        if len(sections) == 1:
            return list(_parts(path, sections, None, ""))
        if "train" in sections:
            raise DataError(f'{path}: both "datasets" and "train"; keep one of them')
        sections["train"] = {"datasets": sections.pop("datasets")}
    named = {key: _split_of(path, key) for key in sections}
    if len(set(named.values())) != len(named) or Split.TRAIN not in named.values():
        raise DataError(
            f'{path}: keys {", ".join(document)}; expected "datasets", "train" and "val", or '
            '"datasets" and "val"'
        )
    parts = []
    for key, split in named.items():
        parts.extend(_parts(path, sections[key], split, f"{key}."))
    return sorted(parts, key=lambda part: part.split is not Split.VAL)


def entry_files(entry: BlendEntry, folder: Path, *, download: bool) -> list[Path]:
    """Return the files of an entry, in order. Raises: DataError when there are none."""
    if is_remote(entry.path):
        return data_files(entry.path, download=download)
    text = entry.path.removeprefix("hf://datasets/").removeprefix("hf://")
    local = next((path for path in (folder / text, Path(text).expanduser()) if path.exists()), None)
    if entry.path.startswith("hf://") or (
        local is None and not Path(text).suffix and "*" not in text
    ):
        name = f"{text}/{entry.subset}" if entry.subset else text
        return data_files(
            {"path": name, "split": entry.split or "train", "revision": entry.revision},
            download=download,
        )
    if local is not None and local.is_dir():
        config = entry.subset if has_card(local) else None
        return data_files({"path": str(local), "split": entry.split, "config": config})
    return data_files(local or folder / text if "*" not in text else str(folder / text))


def _parts(path: Path, section: Any, split: Split | None, where: str) -> Iterator[Part]:
    entries = section.get("datasets") if isinstance(section, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path}: {where}datasets: expected a list of datasets")
    if unknown := [key for key in section if key != "datasets"]:
        raise DataError(f"{path}: unknown key {where}{unknown[0]}; expected {where}datasets")
    for index, entry in enumerate(entries):
        place = f"{where}datasets.{index}"
        if not isinstance(entry, Mapping):
            raise DataError(f"{path}: {place}: {entry!r}; expected an object with name and path")
        try:
            yield Part(BlendEntry(**entry), split)
        except ValidationError as error:
            raise DataError(
                f"{path}: {describe_validation_error(error, place, BlendEntry)}"
            ) from error


def _split_of(path: Path, key: str) -> Split:
    if key == "train":
        return Split.TRAIN
    if key in _VALIDATION_NAMES:
        return Split.VAL
    raise DataError(f'{path}: unknown key {key!r}; expected "datasets", "train" or "val"')
