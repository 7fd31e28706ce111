"""Row files behind an address (`s3://`, `gs://`, `http://`, `https://`), each fetched once per
version.

A fetched file lies in `<home>/data/remote/<scheme>/<host>/<path>/<version>/`, so that messages that
name it show where it is from. The version is what the server says of the content: its ETag, or size
and time of the last change. A server that says neither is asked for the content every time.
"""

import glob
import hashlib
import json
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rl_core.data.prepare.fingerprint import sha256_file
from rl_core.data.read.folders import is_aside, of_split
from rl_core.data.read.formats import KNOWN, format_by_name
from rl_core.data.read.hub import DatasetNotHere
from rl_core.data.store.atomic import atomic_write_text, sync_path
from rl_core.data.store.lock import output_lock
from rl_core.errors import DataError, Unreachable
from rl_core.runtime.home import Home
from rl_core.runtime.storage import error_of
from schemas.rows.media_checks import lower_scheme

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_ORIGIN = "origin.txt"
_NAME_CHARS = 16
_VERSION_KEYS = ("ETag", "etag", "Content-MD5", "md5Hash", "generation")
_TIME_KEYS = ("LastModified", "Last-Modified", "updated", "mtime")


def remote_files(address: str, *, download: bool = True) -> list[Path]:
    """Return the local copies of the files behind an address: a file, a folder or a glob.

    Args: download: False returns what was fetched before, if it is still the server's version.
    Raises: DataError when nothing is there, access is refused or a package is missing;
    DatasetNotHere when it would have to be fetched; Unreachable when the server does not answer.
    """
    with _explained(address):
        files, path = _filesystem(address)
        local: list[Path] = []
        for one in _found(files, path, address):
            local.append(_local(files, one, files.unstrip_protocol(one), download=download))
        return local


def base_of(file: Path) -> Path | str:
    """Return the folder against which the relative media of a file resolve: its own, or the address
    of the folder from which it was fetched."""
    absolute = file.expanduser().absolute()
    origin = absolute.with_name(_ORIGIN)
    if absolute.is_relative_to(_root()) and origin.is_file():
        return posixpath.dirname(origin.read_text(encoding="utf-8"))
    return absolute.parent


def _root() -> Path:
    return (Home.default().data / "remote").absolute()


def fetch_folder(address: str, folder: Path) -> str:
    """Copy all files behind an address into a folder and return the version of the whole.

    Raises: DataError and Unreachable, as `remote_files` does.
    """
    with _explained(address):
        files, path = _filesystem(address)
        http = address.lower().startswith("http")
        inner = [path] if http or files.isfile(path) else sorted(files.find(path))
        if not inner:
            raise FileNotFoundError(address)
        versions = []
        for one in inner:
            name = posixpath.basename(one) if one == path else posixpath.relpath(one, path)
            target = folder / name.partition("?")[0]
            target.parent.mkdir(parents=True, exist_ok=True)
            work = target.with_name(f".{target.name}.part")
            files.get_file(one, str(work))
            sync_path(work)
            work.replace(target)
            versions.append(_version(files.info(one)) or sha256_file(target))
        return hashlib.sha256("".join(versions).encode()).hexdigest()


def _filesystem(address: str) -> tuple["AbstractFileSystem", str]:
    # Late, since rows of local files need no fsspec.
    from fsspec.core import url_to_fs

    # A file system that is kept would answer from the listings of its first day.
    files, path = url_to_fs(lower_scheme(address), use_listings_cache=False)
    return files, str(path)


# Any: fsspec declares `glob` and `find` as lists or dicts of whatever.
def _found(files: Any, path: str, address: str) -> list[str]:
    if address.lower().startswith("http") or files.isfile(path):
        return [path]
    if glob.has_magic(path):
        return _readable(files.glob(path), f"{address}: no data file matches")
    folder, _, split = path.rpartition(":")
    if files.isdir(path):
        return _of_folder(files, path, None, address)
    if folder and files.isdir(folder):
        return _of_folder(files, folder, split, address)
    raise FileNotFoundError(address)


def _of_folder(files: Any, folder: str, split: str | None, address: str) -> list[str]:
    inner = _readable(files.find(folder), f"{address}: no data file in this folder")
    paths: list[str] = []
    for path in of_split(Path(folder), [Path(one) for one in inner], split):
        paths.append(path.as_posix())
    return paths


def _readable(paths: list[str], problem: str) -> list[str]:
    chosen = sorted(path for path in paths if format_by_name(Path(path)) and not _hidden(path))
    if not chosen:
        raise DataError(f"{problem}; expected {KNOWN}")
    return chosen


def _hidden(path: str) -> bool:
    return posixpath.basename(path).startswith(".") or is_aside(Path(posixpath.basename(path)))


def _local(files: "AbstractFileSystem", path: str, address: str, *, download: bool) -> Path:
    """Return the local copy of one remote file."""
    name = posixpath.basename(path.partition("?")[0]) or "rows"
    folder = _root() / _folder_name(address)
    version = _version(files.info(path))
    if version is not None and (known := folder / version / name).is_file():
        return known
    if not download:
        raise DatasetNotHere(f"{address} is not here in its present version")
    folder.mkdir(parents=True, exist_ok=True)
    with output_lock(folder / ".lock"):
        if version is not None and (known := folder / version / name).is_file():
            return known
        return _fetch(files, path, address, folder, name, version)


def _fetch(
    files: "AbstractFileSystem",
    path: str,
    address: str,
    folder: Path,
    name: str,
    version: str | None,
) -> Path:
    work = folder / f".part-{uuid.uuid4().hex[:8]}"
    work.mkdir()
    try:
        files.get_file(path, str(work / name))
        if version != (after := _version(files.info(path))):
            # It changed while it was read: what is here may be of both versions.
            files.get_file(path, str(work / name))
            version = after
        sync_path(work / name)
        atomic_write_text(work / _ORIGIN, address.partition("?")[0])
        version = version or sha256_file(work / name)[:_NAME_CHARS]
        if not (folder / version).is_dir():
            os.rename(work, folder / version)
            sync_path(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder / version / name


def _folder_name(address: str) -> str:
    """Return the relative folder of an address. A query may hold a secret, so its digest stands for
    it."""
    place, _, query = address.partition("?")
    scheme, _, rest = place.partition("://")
    parts = []
    for part in rest.split("/"):
        if part not in ("", ".", ".."):
            parts.append(quote(part, safe=" ()+,=@"))
    digest = [hashlib.sha256(query.encode()).hexdigest()[:_NAME_CHARS]] if query else []
    return "/".join([scheme.lower(), *parts, *digest])


def _version(info: dict[str, object]) -> str | None:
    """Return a short name of the content's version; None if the server says nothing of it."""
    stated = [info[key] for key in _VERSION_KEYS if info.get(key)]
    times = [info[key] for key in _TIME_KEYS if info.get(key)]
    if not stated and not times:
        return None
    parts = stated[:1] or [info.get("size"), *times[:1]]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:_NAME_CHARS]


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Turn what a file system raises into an error of the user or of a machine."""
    try:
        yield
    except (DataError, Unreachable):
        raise
    except ImportError as error:
        raise DataError(f"{address}: {error}; pip install 'rl-train[remote]'") from error
    except Exception as error:  # each file system raises what its transport raises
        raise error_of(address, error, DataError) from error
