"""Resolution of data sources to files: a path, a glob, a folder, or the name of a Hugging Face
dataset.

Dataset names are `name`, `org/name` or `org/name/config`, optionally followed by `@revision` and
`:split`. The default split is `train`, the revision is resolved to a commit, and the files of that
split are read by this project's own readers, so that no value changes its type on the way.
"""

import glob
from pathlib import Path
from typing import Any

from rl_core.data.read.formats import READERS
from rl_core.data.read.hub import HubName, split_files
from rl_core.errors import DataError
from schemas.section import Section


class SourceSpec(Section):
    """A source with its options, as a block of a recipe."""

    path: str
    """A file, a glob, a folder, or the name of a Hugging Face dataset."""
    config: str | None = None
    """Configuration of the dataset."""
    split: str | None = None
    """Split of the dataset; `train` by default."""
    revision: str | None = None
    """Branch, tag or commit of the dataset."""


def data_files(source: str | Path | dict[str, Any], *, download: bool = True) -> list[Path]:
    """Return the files of a source, in order.

    Args: source: a source as described above, or the fields of a `SourceSpec`. download: allow
    fetching a dataset that is not on this machine.
    Raises: DataError when nothing is found, naming what was looked for.
    """
    if isinstance(source, dict):
        spec = SourceSpec(**source)
        given = spec.model_dump(exclude={"path"}, exclude_none=True)
        if not given:
            return data_files(spec.path, download=download)
        return split_files(
            HubName(**{**vars(HubName.parse(spec.path)), **given}), download=download
        )
    text = str(source)
    if not text.strip():
        raise DataError("an empty name of a file, which would be the current folder")
    path = Path(text).expanduser()
    if path.is_dir():
        return _folder(path)
    if path.suffix.lower() in READERS or path.is_file():
        return [path] if path.exists() or not glob.has_magic(text) else _matching(text)
    if glob.has_magic(text):
        return _matching(text)
    if isinstance(source, Path) or text.startswith(("/", "~", ".")) or not HubName.is_name(text):
        return [path]
    if "/" not in text and path.suffix and not path.suffix[1:].isdigit():
        return [path]  # `rows.csv` is a file with a wrong extension, not a dataset
    return split_files(HubName.parse(text), download=download)


def _folder(folder: Path) -> list[Path]:
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in READERS
        and path.is_file()
        and not _hidden(path.relative_to(folder))
    )
    if not files:
        raise DataError(f"{folder}: no data file in this folder; expected {', '.join(READERS)}")
    return files


def _matching(pattern: str) -> list[Path]:
    found = sorted(
        Path(name) for name in glob.glob(str(Path(pattern).expanduser()), recursive=True)
    )
    files = [path for path in found if path.is_file() and path.suffix.lower() in READERS]
    if not files:
        raise DataError(f"{pattern}: no data file matches; expected {', '.join(READERS)}")
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)
