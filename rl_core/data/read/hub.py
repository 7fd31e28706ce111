"""Files of a Hugging Face dataset's split, at one commit, in the hub's own cache.

`datasets` finds the files of a split (by configs, patterns and README entries); the rows are read
by this project's readers.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.data.read.formats import KNOWN, format_of
from rl_core.errors import DataError
from rl_core.runtime.hub_access import hub_problem, is_unreachable, unreachable

_NAME = re.compile(
    r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:/(?P<config>[\w.-]+))?"
    r"(?:@(?P<revision>[\w./-]+))?(?::(?P<split>[\w.-]+))?"
)
_SHARD = re.compile(r"-(\d+)-of-(\d+)")


class DatasetNotHere(DataError):
    """Error of a dataset that is not on this machine and may not be fetched."""


@dataclass(frozen=True)
class HubName:
    """A dataset of the Hugging Face hub."""

    repo: str
    config: str | None = None
    revision: str | None = None
    split: str = "train"

    @staticmethod
    def is_name(text: str) -> bool:
        """Return True if a text could name a dataset."""
        return _NAME.fullmatch(text) is not None

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """Parse `repo[/config][@revision][:split]`. Raises: DataError when it is not such a
        name."""
        match = _NAME.fullmatch(text)
        if match is None:
            raise DataError(
                f"{text}: neither a file nor a dataset name; write repo[/config][@revision][:split]"
            )
        return cls(match["repo"], match["config"], match["revision"], match["split"] or "train")

    def __str__(self) -> str:
        config, revision = (
            (f"/{self.config}" if self.config else ""),
            (f"@{self.revision}" if self.revision else ""),
        )
        return f"{self.repo}{config}{revision}:{self.split}"


def split_files(name: HubName, *, download: bool = True) -> list[Path]:
    """Return the local files of a split, fetched at the commit that its revision names now.

    Args: download: False uses only the cache, as does the environment's `HF_HUB_OFFLINE`.
    Raises: DataError when the dataset, config or split is unknown, or not cached and may not be
    fetched.
    """
    from huggingface_hub.constants import is_offline_mode

    with _explained(name, download):
        local = is_offline_mode() or not download
        files = _cached(name) if local else _fetched(name)
        return _readable(files, str(name))


def files_of_copy(folder: Path, config: str | None, split: str) -> list[Path]:
    """Return the files of a split of a dataset that was fetched into a folder, by its card.

    Raises: DataError when the config or split is unknown.
    """
    name = HubName(str(folder), config, split=split)
    with _explained(name, download=True):
        files = [Path(file) for file in _files_of_split(str(folder), name, None)]
        return _readable(files, str(name))


def _readable(files: list[Path], name: str) -> list[Path]:
    for file in files:
        if format_of(file) is None:
            raise DataError(f"{name}: its files are {file.suffix or file.name}; expected {KNOWN}")
    return files


def _cached(name: HubName) -> list[Path]:
    """Return the split's files in the cached snapshot. Raises: DataError when shards are
    missing."""
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        name.repo, repo_type="dataset", revision=name.revision, local_files_only=True
    )
    files = [Path(file) for file in _files_of_split(folder, name, None)]
    found = [_SHARD.search(file.name) for file in files]
    for match in found:
        if match and sum(other is not None and other[2] == match[2] for other in found) < int(
            match[2]
        ):
            raise DatasetNotHere(
                f"{name}: only {len(files)} of {int(match[2])} files are in {folder}; fetch it "
                "online once"
            )
    return files


def _fetched(name: HubName) -> list[Path]:
    from huggingface_hub import HfApi, hf_hub_download

    commit = HfApi().dataset_info(name.repo, revision=name.revision).sha
    prefix = re.compile(rf"^hf://datasets/{re.escape(name.repo)}(@[^/]+)?/")
    paths: list[Path] = []
    for file in _files_of_split(name.repo, name, commit):
        paths.append(
            Path(
                hf_hub_download(
                    name.repo, prefix.sub("", file), repo_type="dataset", revision=commit
                )
            )
        )
    return paths


def _files_of_split(place: str, name: HubName, commit: str | None) -> list[str]:
    """Return the split's files according to `datasets`, in a hub repository or a folder."""
    import datasets

    builder: Any = datasets.load_dataset_builder(place, name=name.config, revision=commit)
    splits: dict[str, list[str]] = dict(builder.config.data_files or {})
    if name.split not in splits:
        raise DataError(
            f"{name}: no split {name.split!r}; this dataset has "
            f"{', '.join(map(str, splits)) or 'none'}"
        )
    return [str(file) for file in splits[name.split]]


@contextmanager
def _explained(name: HubName, download: bool) -> Iterator[None]:
    """Convert errors of the hub's libraries to one message that names the dataset."""
    from huggingface_hub.constants import is_offline_mode
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        yield
    except DataError:
        raise
    except LocalEntryNotFoundError as error:
        if not is_offline_mode() and (problem := hub_problem()) is not None:
            raise DataError(f"{name}: no such file here, and {problem}") from error
        if not is_offline_mode() and not download:
            raise DatasetNotHere(f"{name}: not in the local cache") from error
        advice = "unset HF_HUB_OFFLINE, or give the path of a file"
        raise DataError(
            f"{name}: no such file, and no such dataset in the local cache; {advice}"
        ) from error
    except HfHubHTTPError as error:
        raise DataError(
            f"{name}: not found on the Hugging Face hub ({str(error).splitlines()[0]})"
        ) from error
    except Exception as error:
        if is_unreachable(error):
            said = unreachable(error)
            raise DataError(f"{name}: no such file here, and {said}") from error
        if not isinstance(error, OSError | ValueError):
            raise
        raise DataError(f"{name}: {str(error).strip().splitlines()[0]}") from error
