"""Folders in an object store (`s3://bucket/runs`, `gs://bucket/runs`), through fsspec.

An object appears whole or not at all, and there is no rename: whoever writes a folder puts its
sentinel there last, and whoever reads one asks for the sentinel first.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.errors import RLTrainError, StorageError, Unreachable, UserError, causes
from rl_core.runtime.user_paths import user_path

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

SCHEMES = ("s3", "gs")
"""Schemes of the object stores that runs can be kept in."""
NUM_COPIES = 8
"""Files that are copied at once."""
_TRY_AGAIN = (408, 429)
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "RefreshError",
    "DefaultCredentialsError",
}
_NETWORK_ERRORS = {
    "ClientConnectorError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "EndpointConnectionError",
    "HttpError",
    "ReadTimeoutError",
    "ServerDisconnectedError",
}
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "generation")


@dataclass(frozen=True)
class Stored:
    """Size and version of one object, as its store states them."""

    size: int
    version: str
    """Text that changes with the content; empty if the store says none."""


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of an object store. Every method raises StorageError (access, credentials, a missing
    package) or Unreachable (a store that does not answer)."""

    url: str

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """Last part of the address."""
        return self.url.rstrip("/").rpartition("/")[2]

    def read(self, name: str) -> bytes:
        """Return the content of an object. Raises: StorageError also when it is not there."""
        with explained(f"{self}/{name}") as files:
            return bytes(files.cat_file(f"{self}/{name}"))  # pyright: ignore[reportArgumentType]

    def write(self, name: str, content: bytes) -> None:
        """Store an object, whole."""
        with explained(f"{self}/{name}") as files:
            files.pipe_file(f"{self}/{name}", content)

    def exists(self, name: str) -> bool:
        """Return True if the object is there."""
        with explained(f"{self}/{name}") as files:
            return bool(files.exists(f"{self}/{name}"))

    def names(self, pattern: str) -> list[str]:
        """Return the paths below this folder, relative to it, that a pattern matches, in order."""
        with explained(str(self)) as files:
            start = _path(files, self.url)
            found: Any = files.glob(f"{start}/{pattern}")
            return sorted(str(one).removeprefix(f"{start}/") for one in found)

    def objects(self) -> dict[str, Stored]:
        """Return what the store says of every object below this folder, by relative path."""
        with explained(str(self)) as files:
            start = _path(files, self.url)
            found: Any = files.find(start, detail=True)
        objects = {}
        for path, info in found.items():
            said = next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")
            version = said.strip('"')
            objects[path.removeprefix(f"{start}/")] = Stored(int(info["size"] or 0), version)
        return objects

    def remove(self, name: str = "") -> None:
        """Remove a folder or object below this one, or this folder; nothing if it is not there."""
        target = f"{self}/{name}".rstrip("/")
        with explained(target) as files:
            if files.exists(target):
                files.rm(target, recursive=True)

    def put(self, files_of: Path, names: Collection[str]) -> None:
        """Store local files under their paths relative to a folder."""
        with explained(str(self)) as files:

            def copy(name: str) -> None:
                files.put_file(str(files_of / name), f"{self}/{name}")

            _all(copy, names)

    def fetch(self, into: Path, names: Collection[str]) -> None:
        """Copy objects to a local folder; each file appears whole."""
        with explained(str(self)) as files:

            def copy(name: str) -> None:
                target = into / name
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(f".{target.name}.part")
                files.get_file(f"{self}/{name}", str(part))
                part.replace(target)

            _all(copy, names)


def _all(copy: Any, names: Collection[str]) -> None:
    with ThreadPoolExecutor(NUM_COPIES) as copies:
        for _ in copies.map(copy, names):
            pass


def scheme_of(text: str) -> str:
    """Return the scheme of an address in lower case; empty for a path."""
    scheme, mark, _ = text.partition("://")
    return scheme.lower() if mark else ""


def parse_storage(text: str, setting: str) -> RemoteFolder | Path:
    """Return the place that a setting names: a folder of an object store, or one of this machine's
    file systems.

    Args: setting: name of the setting, for the message. Raises: StorageError for a place of another
    kind, or a relative path.
    """
    scheme = scheme_of(text)
    good = "give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or an absolute path that all nodes share"
    if scheme in SCHEMES:
        rest = text.partition("://")[2].strip("/")
        if not rest:
            raise StorageError(f"{setting}: {text} names no bucket; {good}")
        return RemoteFolder(f"{scheme}://{rest}")
    if scheme or text[:4].lower() in ("s3:/", "gs:/"):
        raise StorageError(f"{setting}: {text} is no place that runs can be kept in; {good}")
    path = user_path(text)
    if not path.is_absolute():
        raise StorageError(f"{setting}: {text} is a relative path; {good}")
    return path


def place_of(text: str) -> RemoteFolder | Path:
    """Return a folder that this project named: an address of an object store, or a path."""
    return RemoteFolder(text) if scheme_of(text) in SCHEMES else Path(text)


@contextmanager
def landing(folder: str) -> Iterator[Path]:
    """Yield a local folder for files that belong into `folder`, which may be of an object store.

    A local folder is yielded itself. For a store it is a temporary one, whose files are stored when
    the block ends without an error.
    """
    place = place_of(folder)
    if isinstance(place, Path):
        yield place
        return
    building = Path(tempfile.mkdtemp(prefix="rl-train-"))
    try:
        yield building / place.name
        names = []
        for path in (building / place.name).rglob("*"):
            if path.is_file():
                names.append(path.relative_to(building / place.name).as_posix())
        place.put(building / place.name, names)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def explained(address: str, kind: type[UserError] = StorageError) -> Iterator[AbstractFileSystem]:
    """Yield the file system of an address, and turn what it raises into an error of the user or of
    a machine.

    Args: kind: class of the error where the user can do something.
    """
    try:
        # Late, since local folders need no fsspec.
        from fsspec.core import url_to_fs

        # A file system that is kept would answer from the listings of its first day.
        yield url_to_fs(address, use_listings_cache=False)[0]
    except RLTrainError:
        raise
    except ImportError as error:
        raise kind(f"{address}: {error}; pip install 'rl-train[remote]'") from error
    except Exception as error:  # each file system raises what its transport raises
        raise error_of(address, error, kind) from error


def error_of(address: str, error: BaseException, kind: type[UserError]) -> UserError | Unreachable:
    """Return the error that stands for what a file system raised: of `kind` if the user can do
    something, else Unreachable."""
    # The file system of the web says "not found" of any failure; the reason is its cause.
    behind = list(causes(error))
    names = {type(one).__name__ for one in behind}
    statuses = [getattr(one, "status", None) for one in behind]
    status = next((status for status in statuses if isinstance(status, int)), 0)
    said = next((str(one).strip() for one in reversed(behind) if str(one).strip()), "")
    if names & _NO_CREDENTIALS:
        return kind(f"{address}: no credentials ({said})")
    if status in (401, 403) or isinstance(error, PermissionError):
        return kind(f"{address}: access refused ({said}); check the credentials")
    if status in _TRY_AGAIN or status >= 500 or names & _NETWORK_ERRORS:
        return Unreachable(f"{address}: cannot be reached ({said})")
    if isinstance(error, FileNotFoundError):
        return kind(f"{address}: no such file there")
    if isinstance(error, OSError | asyncio.TimeoutError) and not status:
        return Unreachable(f"{address}: cannot be reached ({said})")
    return kind(f"{address}: cannot be used ({said})")


def _path(files: AbstractFileSystem, url: str) -> str:
    """Return the path of an address within its file system."""
    return str(files._strip_protocol(url)).rstrip("/")
