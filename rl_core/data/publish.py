"""Build, then publish: a folder that readers take for complete only when it is.

The work is done in `.build-<name>-<id>` beside the folder, synced and renamed into place; the sentinel `.ready`
comes last, with the run hash, row counts and the sha256 of every file. A lock lets one of several callers build
while the others wait and find the result. The lock is the operating system's, so it ends with its owner.
"""

import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_core.data.atomic import atomic_write_text, storage_error, sync_path
from rl_core.data.fingerprint import sha256_file

SENTINEL = ".ready"


class Sentinel(BaseModel):
    """What `.ready` says about the folder it lies in."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run_hash: str
    """What the folder was made from."""
    counts: dict[str, int]
    """Rows per split, or whatever the build counted."""
    files: dict[str, str]
    """Path inside the folder -> sha256."""
    created_at: str
    """UTC, ISO 8601, in seconds."""


def read_sentinel(folder: Path | str) -> Sentinel | None:
    """The folder's sentinel, or None unless it is there and every file it names has the digest it names."""
    root = Path(folder)
    try:
        sentinel = Sentinel.model_validate_json((root / SENTINEL).read_text(encoding="utf-8"))
        whole = all(sha256_file(root / name) == digest for name, digest in sentinel.files.items())
    except (OSError, ValidationError):
        return None
    return sentinel if whole else None


def publish(folder: Path | str, run_hash: str, build: Callable[[Path], Mapping[str, int]]) -> tuple[Sentinel, bool]:
    """The folder's sentinel for `run_hash`, and whether it was there already; else builds it.

    Args: build: fills the folder it is given and returns counts; whatever it raises leaves nothing behind.
    Raises: StorageError when the folder cannot be written (a full disk, a missing permission).
    """
    from filelock import FileLock

    target = Path(folder)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent / f".{target.name}.lock"):
            sentinel = read_sentinel(target)
            if sentinel is not None and sentinel.run_hash == run_hash:
                return sentinel, True
            _remove_leftovers(target)
            return _build_and_rename(target, run_hash, build), False
    except OSError as error:
        raise storage_error(error.filename or target, error) from error


def _build_and_rename(target: Path, run_hash: str, build: Callable[[Path], Mapping[str, int]]) -> Sentinel:
    work = target.parent / f".build-{target.name}-{uuid.uuid4().hex[:8]}"
    work.mkdir()
    try:
        counts = dict(build(work))
        files = sorted(path for path in work.rglob("*") if path.is_file())
        for path in [*files, *(path for path in work.rglob("*") if path.is_dir()), work]:
            sync_path(path)
        digests = {path.relative_to(work).as_posix(): sha256_file(path) for path in files}
        if target.exists():
            target.rename(work.with_name(work.name.replace(".build-", ".old-", 1)))
        work.rename(target)
        sync_path(target.parent)
    finally:
        _remove_leftovers(target)
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    sentinel = Sentinel(run_hash=run_hash, counts=counts, files=digests, created_at=created_at)
    atomic_write_text(target / SENTINEL, sentinel.model_dump_json(indent=2) + "\n")
    return sentinel


def _remove_leftovers(target: Path) -> None:
    """Remove working folders of this target; under the lock, whoever made them is gone."""
    pattern = re.compile(rf"\.(build|old)-{re.escape(target.name)}-[0-9a-f]{{8}}")
    for path in target.parent.iterdir():
        if pattern.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
