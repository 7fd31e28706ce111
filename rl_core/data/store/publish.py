"""Publication of a built folder, which readers consider complete only when it is.

The work is done in `.build-<name>-<id>` next to the folder, synced, checked and renamed into place;
the sentinel is written last, with the run hash, its parts, counts and the sha256 of every file. One
of several callers builds while the others wait and find the result. Published files contain no
times and no paths of this machine: the same inputs give the same bytes.
"""

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_core.data.prepare.fingerprint import sha256_file
from rl_core.data.store.atomic import (
    NETWORK_ERRORS,
    atomic_write_text,
    storage_error,
    sync_path,
    sync_tree,
)
from rl_core.data.store.lock import Note, output_lock
from rl_core.errors import DataError, StorageError

SENTINEL = ".ready"
RECEIPTS = ".receipts"
HASH_CHARS = 12
"""Number of characters of a run hash in the names of files and folders."""


class Sentinel(BaseModel):
    """Content of the sentinel file of a complete folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    run_hash: str
    """Run hash of the folder's inputs."""
    parts: dict[str, str] = {}
    """Parts of the run hash, so that a later miss can be explained."""
    counts: dict[str, int]
    """Rows per split, or other counts of the build."""
    files: dict[str, str]
    """sha256 of each file by its path inside the folder."""


@dataclass(frozen=True)
class Built:
    """Return value of a build."""

    counts: Mapping[str, int]
    digests: Mapping[str, str] = field(default_factory=dict)
    """sha256 by path inside the folder, for files whose digest is already known; the rest are read
    again."""


Build = Callable[[Path], Built]


def parse_sentinel(folder: Path | str, name: str = SENTINEL) -> Sentinel | None:
    """Parse the folder's sentinel without checking the files; return None if there is none."""
    try:
        return Sentinel.model_validate_json((Path(folder) / name).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def open_published(folder: Path | str, name: str, run_hash: str | None = None) -> Sentinel:
    """Return the sentinel of a complete folder, for a reader.

    Args: run_hash: the run hash that the reader expects. Raises: DataError when the folder is not
    complete, or another one.
    """
    root = Path(folder).expanduser().resolve()
    sentinel = parse_sentinel(root, name)
    if sentinel is None:
        raise DataError(
            f"{folder}: no readable {name}, so this is no complete preparation; prepare it again"
        )
    if run_hash is not None and sentinel.run_hash != run_hash:
        raise DataError(
            f"{folder}: holds preparation {sentinel.run_hash[:12]}, not {run_hash[:12]}; prepare "
            "it again"
        )
    memo = receipts_dir(root) / f"{sentinel.run_hash[:HASH_CHARS]}.files.json"
    if (damaged := damaged_file(root, sentinel, memo if memo.is_file() else None)) is not None:
        raise DataError(
            f"{folder}: {damaged} is missing or is not what was prepared; prepare it again"
        )
    return sentinel


def damaged_file(folder: Path | str, sentinel: Sentinel, memo: Path | None = None) -> str | None:
    """Return the first file that is missing or differs from the sentinel, or None."""
    root, known = Path(folder), _read_memo(memo)
    fresh: dict[str, list[int]] = {}
    for name, digest in sentinel.files.items():
        try:
            fresh[name] = _stat_key(f"{root}/{name}")
            if known.get(f"{digest} {name}") != fresh[name] and sha256_file(root / name) != digest:
                return name
        except OSError:
            return name
    values = {f"{sentinel.files[name]} {name}": stat for name, stat in fresh.items()}
    if memo is not None and known != values:
        _write_memo(memo, values)
    return None


def publish(
    folder: Path | str,
    run_hash: str,
    build: Build,
    *,
    parts: Mapping[str, str] | None = None,
    sentinel_name: str = SENTINEL,
    memo: Path | None = None,
    check: Callable[[Path, Built], None] | None = None,
    force: bool = False,
    note: Note | None = None,
) -> tuple[Sentinel, bool]:
    """Return the folder's sentinel for `run_hash`, built if necessary, and whether it existed
    already.

    Args: build: fills the folder that it gets; if it raises, nothing is left behind. check: checks
    the finished work before it is published. force: build even if the result exists. note: receives
    a message about what this waits for.
    Raises: StorageError when the folder cannot be written, or holds files that are not a prepared
    result.
    """
    target = Path(folder).expanduser().resolve()

    def found() -> Sentinel | None:
        known = None if force else parse_sentinel(target, sentinel_name)
        if known and known.run_hash == run_hash and damaged_file(target, known, memo) is None:
            return known
        return None

    try:
        # A hit writes nothing, so it needs no lock and no permission.
        if (sentinel := found()) is not None:
            return sentinel, True
        target.parent.mkdir(parents=True, exist_ok=True)
        with output_lock(lock_path(target), note):
            if (sentinel := found()) is not None:
                return sentinel, True
            _remove_leftovers(target)
            refuse_strangers(target, sentinel_name)
            draft = Sentinel(run_hash=run_hash, parts=dict(parts or {}), counts={}, files={})
            sentinel = _build_and_rename(target, build, check, sentinel_name, draft)
            if memo is not None:
                values = {}
                for name, d in sentinel.files.items():
                    values[f"{d} {name}"] = _stat_key(f"{target}/{name}")
                _write_memo(memo, values)
            return sentinel, False
    except NETWORK_ERRORS:
        raise
    except OSError as error:
        raise storage_error(error.filename or target, error) from error


def files_below(folder: Path) -> Iterator[str]:
    """Yield paths relative to `folder`, with `/` between their parts."""
    for place, _, names in os.walk(folder):
        start = "" if place == str(folder) else f"{os.path.relpath(place, folder)}/"
        yield from (start + name for name in names)


def lock_path(target: Path) -> Path:
    """Return the path of an output folder's lock, next to it."""
    return target.parent / f".{target.name}.lock"


def receipts_dir(target: Path) -> Path:
    """Return the folder of an output folder's receipts, next to it."""
    return target.parent / RECEIPTS / target.name


def _build_and_rename(
    target: Path,
    build: Build,
    check: Callable[[Path, Built], None] | None,
    sentinel_name: str,
    draft: Sentinel,
) -> Sentinel:
    work = target.parent / f".build-{target.name}-{uuid.uuid4().hex[:8]}"
    work.mkdir()
    try:
        built = build(work)
        if check is not None:
            check(work, built)
        digests = {}
        for name in sorted(files_below(work)):
            digests[name] = built.digests.get(name) or sha256_file(work / name)
        sync_tree(work)
        if target.exists():
            target.rename(work.with_name(work.name.replace(".build-", ".old-", 1)))
        work.rename(target)
        sync_path(target.parent)
    finally:
        _remove_leftovers(target)
    sentinel = draft.model_copy(update={"counts": dict(built.counts), "files": digests})
    atomic_write_text(target / sentinel_name, sentinel.model_dump_json(indent=1) + "\n")
    return sentinel


def refuse_strangers(target: Path, sentinel_name: str) -> None:
    """Refuse to replace a folder that was not prepared here before, as shown by a sentinel, or a
    receipt next to the folder. Raises: StorageError."""
    if target.is_dir() and not any(target.iterdir()):
        return
    above = next(folder for folder in target.parents if folder.exists())
    if not above.is_dir():
        raise StorageError(
            f"{target}: {above} is a file; name an empty or new folder as the output"
        )
    ours = (target / sentinel_name).is_file() or receipts_dir(target).is_dir()
    if target.exists() and not (target.is_dir() and ours):
        what = "holds files that no preparation wrote" if target.is_dir() else "is a file"
        raise StorageError(f"{target} {what}; name an empty or new folder as the output")


def _remove_leftovers(target: Path) -> None:
    """Remove working folders of this target; under the lock, the processes that made them are
    gone."""
    pattern = re.compile(rf"\.(build|old)-{re.escape(target.name)}-[0-9a-f]{{8}}")
    for path in target.parent.iterdir():
        if pattern.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _stat_key(path: str) -> list[int]:
    stat = os.stat(path)
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _read_memo(memo: Path | None) -> dict[str, list[int]]:
    try:
        found = json.loads(memo.read_text(encoding="utf-8")) if memo is not None else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_memo(memo: Path, values: dict[str, list[int]]) -> None:
    # A memo only saves time; a read-only disk does without.
    with suppress(StorageError):
        atomic_write_text(memo, json.dumps(values))
