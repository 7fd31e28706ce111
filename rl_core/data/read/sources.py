"""Resolution of data sources to files: a path, a glob, a folder, an address, or the name of a
Hugging Face dataset.

Addresses begin with `s3://`, `gs://`, `http://`, `https://` or `file://`; their files are fetched.
A folder gives the split that is asked for, as `folder:test` (`rl_core.data.read.folders`).
Dataset names are `name`, `org/name` or `org/name/config`, optionally after `hf://`, and followed by
`@revision` and `:split`. The default split is `train`, the revision is resolved to a commit, and
the files of that split are read by this project's own readers, so that no value changes its type on
the way.
"""

import glob
import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from rl_core.data.read.folders import files_of_folder, has_card
from rl_core.data.read.formats import KNOWN, format_by_name
from rl_core.data.read.hub import HubName, files_of_copy, split_files
from rl_core.data.read.remote import remote_files
from rl_core.errors import DataError
from rl_core.runtime.user_paths import user_path
from schemas.rows.media_checks import is_remote
from schemas.sections.parts import Block
from schemas.sections.section import Section

_SPLIT = re.compile(r"[\w.-]+")


class SourceSpec(Section):
    """A source with its options, as a block of a recipe."""

    path: str
    """A file, a glob, a folder, an address, or the name of a Hugging Face dataset."""
    config: str | None = None
    """Configuration of the dataset."""
    split: str | None = None
    """Split of the dataset, or of a folder; `train` by default."""
    revision: str | None = None
    """Branch, tag or commit of the dataset."""


def data_files(source: str | Path | Block, *, download: bool = True) -> list[Path]:
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
        if is_remote(spec.path):
            suffix = f":{spec.split}" if spec.split else ""
            return remote_files(f"{spec.path}{suffix}", download=download)
        if (folder := user_path(spec.path)).is_dir():
            if spec.revision is not None:
                raise DataError(f"{spec.path}: a folder has no revision {spec.revision!r}")
            return _folder(folder, spec.split, spec.config)
        return split_files(
            HubName(**{**vars(HubName.parse(_without_scheme(spec.path))), **given}),
            download=download,
        )
    text = str(source)
    if not text.strip():
        raise DataError("an empty name of a file; is a variable empty that should hold it?")
    if text.startswith("hf://"):
        if not HubName.is_name(_without_scheme(text)):
            raise DataError(f"{text}: expected hf://repo[/config][@revision][:split]")
        return split_files(HubName.parse(_without_scheme(text)), download=download)
    if text.lower().startswith("file://"):
        return data_files(Path(url2pathname(urlsplit(text).path)))
    if is_remote(text):
        return remote_files(text, download=download)
    if "://" in text and not Path(text).exists():
        raise DataError(f"{text}: no such file, and no address of s3, gs, http, https, file or hf")
    path = user_path(text)
    if path.is_dir():
        return _folder(path)
    folder, _, split = text.rpartition(":")
    if folder.strip() and _SPLIT.fullmatch(split) and Path(folder).expanduser().is_dir():
        return _folder(Path(folder).expanduser(), split)
    if format_by_name(path) or path.is_file():
        if path.exists() or not glob.has_magic(text):
            return [path]
        return _matching(text)
    if glob.has_magic(text):
        return _matching(text)
    if isinstance(source, Path) or text.startswith(("/", "~", ".")) or not HubName.is_name(text):
        return [path]
    if "/" not in text and path.suffix and not path.suffix[1:].isdigit():
        return [path]  # `rows.csv` is a file with a wrong extension, not a dataset
    return split_files(HubName.parse(text), download=download)


def _without_scheme(name: str) -> str:
    return name.removeprefix("hf://").removeprefix("datasets/")


def _folder(folder: Path, split: str | None = None, config: str | None = None) -> list[Path]:
    if config is not None or has_card(folder):
        return files_of_copy(folder, config, split or "train")
    return files_of_folder(folder, split)


def _matching(pattern: str) -> list[Path]:
    found = sorted(
        Path(name) for name in glob.glob(str(Path(pattern).expanduser()), recursive=True)
    )
    files = [path for path in found if path.is_file() and format_by_name(path)]
    if not files:
        raise DataError(f"{pattern}: no data file matches; expected {KNOWN}")
    return files
