"""Data files of a folder: of the split that is asked for, where the folder has splits.

A folder that `datasets` saved says what its files are, and so does a dataset's card (`README.md`
with `configs`). Else names say it, as on the hub: `train.parquet`,
`data/test-00000-of-00002.parquet`, `validation/rows.jsonl`. Where no name says anything, a folder
is all its files.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from rl_core.data.read.files.compressed import OPENERS
from rl_core.data.read.formats import KNOWN, format_by_name
from rl_core.errors import DataError

CARD = "README.md"
_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"
_METADATA = re.compile(
    r"(readme|license|licence|requirements)\b.*|"
    r"dataset_infos?\.json|state\.json|dataset_dict\.json",
    re.IGNORECASE,
)
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF = {word: split for split, words in _SPLIT_WORDS.items() for word in words}
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")
_NUM_SHOWN = 8


def files_of_folder(folder: Path, split: str | None = None) -> list[Path]:
    """Return the data files of a folder, in order of their paths.

    Args: split: unset means the split that the folder itself is named after, else `train`.
    Raises: DataError when there is none, no such split, or it cannot be told.
    """
    if (folder / _SAVED_SPLITS).is_file():
        return _of_saved_splits(folder, split)
    if (folder / _SAVED).is_file():
        return _of_saved(folder, split)
    files = []
    for file in walk(folder):
        if format_by_name(file) and not is_aside(file.relative_to(folder)):
            files.append(file)
    if not files:
        raise DataError(f"{folder}: no data file in this folder; expected {KNOWN}")
    return of_split(folder, sorted(files), split)


def has_card(folder: Path) -> bool:
    """Return True if a folder is a copy of a hub dataset whose card says which files are which."""
    try:
        text = (folder / CARD).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    parts = text.split("---", 2)
    if len(parts) != 3 or parts[0].strip():
        return False
    try:
        said = yaml.safe_load(parts[1])
    except yaml.YAMLError:
        return False
    configs = said.get("configs") if isinstance(said, dict) else None
    return isinstance(configs, list) and any("data_files" in one for one in configs)


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder that are not hidden; folders behind links are entered, each
    once."""
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place, name)
            if not name.startswith(".") and path.is_file():
                yield path


def is_aside(path: Path) -> bool:
    """Return True for what lies beside the rows: metadata, and names that begin with `_`."""
    return bool(_METADATA.fullmatch(path.name)) or any(part.startswith("_") for part in path.parts)


def _of_saved_splits(folder: Path, split: str | None) -> list[Path]:
    splits = _read(folder / _SAVED_SPLITS).get("splits")
    if not isinstance(splits, list):
        raise DataError(f"{folder / _SAVED_SPLITS}: no list of splits; save the dataset again")
    wanted = split or "train"
    if wanted not in splits:
        raise DataError(
            f"{folder}: no split {wanted!r}; this dataset has {', '.join(map(str, splits))}, "
            f"asked for as {folder}:NAME"
        )
    return _of_saved(folder / wanted, None)


def _of_saved(folder: Path, split: str | None) -> list[Path]:
    state = _read(folder / _SAVED)
    names = [entry.get("filename") for entry in state.get("_data_files") or []]
    own = state.get("_split")
    if split is not None and own is not None and split != own:
        raise DataError(f"{folder}: no split {split!r}; this dataset is the split {own!r}")
    files = [folder / str(name) for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        said = f"{', '.join(missing)} is missing" if missing else "it names no data file"
        raise DataError(f"{folder}: a saved dataset that is not whole: {said}; save it again")
    return files


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read ({error}); save the dataset again") from error
    if not isinstance(found, dict):
        raise DataError(f"{file}: expected an object; save the dataset again")
    return found


def of_split(folder: Path, files: Sequence[Path], split: str | None) -> list[Path]:
    """Return those of a folder's files that are of a split, by their names alone.

    Args: split: as in `files_of_folder`. Raises: DataError when none is, or it cannot be told.
    """
    labels = {file: _labels(file.relative_to(folder)) for file in files}
    if split is None and not any(labels.values()):
        return list(files)
    wanted = split or _SPLIT_OF.get(folder.resolve().name.lower(), "train")
    wanted = _SPLIT_OF.get(wanted.lower(), wanted)
    unclear = [file for file in files if len(labels[file]) != 1]
    if unclear:
        said = (
            f"{unclear[0].relative_to(folder)} names {'several' if labels[unclear[0]] else 'none'}"
        )
        raise DataError(
            f"{folder}: which files are of the split {wanted!r} cannot be told, since {said}; give "
            f"the files or a glob; there are {_listed(folder, files)}"
        )
    chosen = [file for file in files if labels[file] == {wanted}]
    if not chosen:
        known = sorted(set[str]().union(*labels.values()))
        raise DataError(
            f"{folder}: no file of the split {wanted!r}; this folder has {', '.join(known)}, asked "
            f"for as {folder}:{known[0]}"
        )
    return chosen


def _labels(path: Path) -> set[str]:
    """Return the splits that a relative path names: one, none, or contradicting ones."""
    parts = [_labels_of_name(_stem(path))] + [_labels_of_name(part) for part in path.parts[:-1]]
    said = [labels for labels in parts if labels]
    return set[str]().union(*said)


def _labels_of_name(name: str) -> set[str]:
    shard = _SHARD.fullmatch(name)
    whole = shard[1] if shard else name
    words = re.split(r"[^a-z0-9]+|(?<=[a-z])(?=\d)", whole.lower())
    splits = {_SPLIT_OF[word] for word in words if word in _SPLIT_OF}
    if shard and len(splits) == 1 and words[0] in _SPLIT_OF and "_" in whole:
        return {whole}  # `train_sft-00000-of-00002`, a split of that name
    return splits


def _stem(path: Path) -> str:
    """Return the name without the suffixes of its format: `a.b` of `a.b.jsonl.gz`."""
    stem = Path(path.stem)
    if path.suffix.lower() in OPENERS:
        return stem.stem
    return stem.name


def _listed(folder: Path, files: Sequence[Path]) -> str:
    names = [file.relative_to(folder).as_posix() for file in files]
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more
