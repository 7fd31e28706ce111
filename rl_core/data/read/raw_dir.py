"""Raw inputs: existing folders, datasets fetched from the Hugging Face hub at a recorded commit, or
files fetched from an address.

A folder is complete if every required file is in it. For upstream layouts that are not declared
file by file, any content counts, except the remains of an interrupted download: `.cache`,
`*.incomplete`, a README alone.
"""

import errno
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_core.data.read.folders import walk
from rl_core.data.read.remote import fetch_folder
from rl_core.data.store.atomic import atomic_write_json, storage_error
from rl_core.data.store.lock import Note, output_lock
from rl_core.errors import DataError, StorageError
from schemas.rows.media_checks import is_remote

MARK = ".rl-train-download.json"
"""File with the source and commit of the folder's content, and whether the download completed."""

_NO_CONTENT = ("readme", "license", ".git")


@dataclass(frozen=True)
class RawDir:
    """A complete folder of raw inputs."""

    path: Path
    revision: str | None
    """Commit at which it was fetched, or a digest of the versions behind an address; None for files
    from elsewhere."""


@dataclass(frozen=True)
class HubSource:
    """A dataset repository, `hf://owner/name` or `hf://owner/name@revision`."""

    repo_id: str
    revision: str | None

    @classmethod
    def parse(cls, uri: str) -> "HubSource":
        """Parse a URI.

        Raises: DataError when it is not of that form.
        """
        body = uri.removeprefix("hf://").removeprefix("datasets/")
        repo_id, _, revision = body.partition("@")
        if not uri.startswith("hf://") or repo_id.count("/") != 1 or not all(repo_id.split("/")):
            raise DataError(
                f"source_uri {uri!r}: expected hf://owner/name, hf://owner/name@revision, or an "
                "address (s3, gs, https)"
            )
        return cls(repo_id, revision or None)


def content_files(folder: Path) -> Iterator[Path]:
    """Yield the data files of a raw folder: nothing hidden, partially fetched, or descriptive."""
    for path in walk(folder):
        unfinished = path.name.endswith((".incomplete", ".lock", ".part"))
        if not unfinished and not path.name.lower().startswith(_NO_CONTENT):
            yield path


def missing_files(input_dir: Path, required: Sequence[str]) -> list[str]:
    """Return the missing files of the folder; empty if it is complete."""
    mark = _read_mark(input_dir)
    if mark is not None and not mark.get("complete"):
        return [f"the rest of {mark.get('source_uri')}, whose download was interrupted"]
    if required:
        return [name for name in required if not (input_dir / name).is_file()]
    if any(True for _ in content_files(input_dir)):
        return []
    return ["any data file"]


def ensure_raw_dir(
    input_dir: Path | str,
    source_uri: str | None = None,
    required: Sequence[str] = (),
    *,
    env_name: str | None = None,
    note: Note | None = None,
) -> RawDir:
    """Return a folder with the raw inputs; fetch them if they are missing and `source_uri` is set.

    Args: required: file names relative to the folder; empty accepts any content. env_name: the
    environment variable that may name another folder, for the message. note: receives a message
    about what is being fetched.
    Raises: DataError naming exactly the missing files and what to set.
    """
    folder = Path(input_dir).expanduser()
    missing = missing_files(folder, required)
    if not missing:
        return RawDir(folder, recorded_revision(folder))
    if not source_uri:
        variable = f", or export {env_name}" if env_name else ""
        raise DataError(
            f"{folder}: missing {', '.join(missing)}; put them there, set input_dir to where "
            f"they are{variable}, or set source_uri (hf://owner/name, s3://bucket/folder) to fetch "
            "them"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with output_lock(folder.parent / f".{folder.resolve().name}.download.lock", note):
            if missing_files(folder, required):
                _fetch(folder, source_uri, note)
    except OSError as error:
        raise storage_error(error.filename or folder, error) from error
    if missing := missing_files(folder, required):
        raise DataError(
            f"{folder}: {source_uri} was fetched, and {', '.join(missing)} is not in it; check "
            "source_uri"
        )
    return RawDir(folder, recorded_revision(folder))


def _fetch(folder: Path, source_uri: str, note: Note | None) -> None:
    if is_remote(source_uri):
        if note is not None:
            note(f"fetching {source_uri} into {folder}")
        atomic_write_json(folder / MARK, {"source_uri": source_uri, "complete": False})
        state = {"source_uri": source_uri, "revision": fetch_folder(source_uri, folder)}
        atomic_write_json(folder / MARK, {**state, "complete": True})
        return
    from huggingface_hub import HfApi, snapshot_download

    source = HubSource.parse(source_uri)
    try:
        commit = HfApi().dataset_info(source.repo_id, revision=source.revision).sha
        if note is not None:
            note(f"fetching {source_uri} at {commit} into {folder}")
        state = {"source_uri": source_uri, "revision": commit}
        atomic_write_json(folder / MARK, {**state, "complete": False})
        snapshot_download(source.repo_id, repo_type="dataset", revision=commit, local_dir=folder)
        atomic_write_json(folder / MARK, {**state, "complete": True})
    except StorageError:
        raise
    except Exception as error:  # the hub's client raises what its transport raises
        if isinstance(error, OSError) and error.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EACCES,
            errno.EROFS,
        ):
            raise
        said = str(error).strip().splitlines() or [type(error).__name__]
        advice = f"check the name, the network and HF_TOKEN, or put the files into {folder} by hand"
        raise DataError(f"{source_uri}: cannot be fetched ({said[0]}); {advice}") from error


def recorded_revision(folder: Path) -> str | None:
    """Return the commit at which a folder was fetched, or None for files from elsewhere."""
    mark = _read_mark(folder)
    if mark is not None:
        return mark.get("revision")
    return None


def _read_mark(folder: Path) -> dict[str, str] | None:
    try:
        return json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
