"""Atomic writes: files that are either complete or absent, by writing next to the target, syncing
and renaming."""

import ctypes
import errno
import json
import os
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO

from rl_core.errors import RLTrainError, StorageError

SYNC_ONE_BY_ONE = 64
"""Number of files up to which each is synced separately, so that a small result does not wait for
the rest of the disk."""


_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
NETWORK_ERRORS = (ConnectionError, TimeoutError, socket.gaierror)
"""OSErrors that no disk raises; they come from what computes the content of a file."""


def storage_error(path: Path | str, error: OSError) -> StorageError:
    """Convert an OSError to a message that names the path and what to do."""
    advice = {
        errno.ENOSPC: "the disk is full: free some space, or write to another disk",
        errno.EDQUOT: "the disk quota is used up: free some space, or write to another disk",
        errno.EFBIG: (
            "a file grew past the size limit of this process or disk: raise it (ulimit -f)"
        ),
        errno.EACCES: "permission denied: write to a folder you own, or change its permissions",
        errno.EPERM: "not permitted: write to a folder you own, or change its permissions",
        errno.EROFS: "the disk is read-only: write to another disk",
        errno.EIO: "the disk fails (dmesg says how): write to another disk",
        errno.ENOLCK: "this disk does not support file locks: write to another disk",
        errno.EOPNOTSUPP: "this disk does not support file locks: write to another disk",
        errno.EEXIST: "a part of the path is a file: move it away, or write to another folder",
        errno.ENOTDIR: "a part of the path is a file: move it away, or write to another folder",
    }
    return StorageError(f"cannot write {path}: {advice.get(error.errno or 0, str(error))}")


@contextmanager
def disk_errors(path: Path | str) -> Iterator[None]:
    """Turn what a full, read-only or failing disk lets the block raise into a StorageError.

    Libraries in Rust (safetensors, tokenizers) raise errors of their own, with the system's number
    in the text. Args: path: what is written, for errors that name no file.
    """
    try:
        yield
    except (RLTrainError, *NETWORK_ERRORS):
        raise
    except OSError as error:
        raise storage_error(error.filename or path, error) from error
    except Exception as error:
        found = _SYSTEM_ERROR.search(str(error))
        if found is None:
            raise
        number = int(found[1])
        raise storage_error(path, OSError(number, os.strerror(number))) from error


def unreadable(path: Path | str, error: OSError) -> StorageError:
    """Convert an OSError of reading to a message that names the path and what to do."""
    reason = error.strerror or str(error)
    return StorageError(
        f"cannot read {path}: {reason}; its disk fails (dmesg says how), or is away"
    )


def sync_path(path: Path) -> None:
    """Sync a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync everything below a folder to disk."""
    paths = [folder, *islice(folder.rglob("*"), SYNC_ONE_BY_ONE)]
    if len(paths) <= SYNC_ONE_BY_ONE:
        for path in paths:
            sync_path(path)
        return
    # One call for the whole file system: thousands of single ones would take minutes.
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)


@contextmanager
def atomic_writer(path: Path | str) -> Iterator[IO[str]]:
    """Open a UTF-8 text file that replaces `path` when the block ends without an error.

    Raises: StorageError when it cannot be written; `path` is then unchanged.
    """
    target = Path(path)
    if target.is_dir():
        raise StorageError(f"cannot write {target}: a folder; name a file")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        sync_path(target.parent)
    except NETWORK_ERRORS:
        raise
    except OSError as error:
        raise storage_error(target, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def atomic_write_text(path: Path | str, text: str) -> None:
    """Write `text` to `path` atomically. Raises: StorageError."""
    with atomic_writer(path) as file:
        file.write(text)


def atomic_write_json(path: Path | str, value: object) -> None:
    """Write `value` as indented JSON to `path` atomically. Raises: StorageError."""
    atomic_write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")
