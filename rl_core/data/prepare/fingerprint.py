"""Content digests of input files, and the hash of all inputs of a prepared result.

A file's sha256 is cached together with its size and times, so an unchanged file is not read twice.
"""

import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path

from rl_core.data.store.atomic import atomic_write_json, unreadable
from rl_core.errors import DataError
from rl_core.runtime.user_paths import no_file
from schemas.receipts import SourceFile

SETTLE_NS = 1_000_000_000
"""A file changed this shortly before it was read may change again without a new time stamp, so its
digest is not cached."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_SHOWN = 60


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's content, in hexadecimal. Raises: StorageError when it is there
    and its disk does not give it."""
    with path.open("rb") as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise unreadable(path, error) from error


def fingerprint(path: Path | str, memo_dir: Path | str) -> SourceFile:
    """Return a file's size, time and sha256, from `memo_dir` if size and times are unchanged.

    Raises: DataError when there is no such file.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise DataError(f"{path}: {no_file(path)}; give the path of a data file")
    stat = file.stat()
    # ctime is part of the key since a copy that keeps mtime (cp -p, rsync -t) still changes it.
    key = {
        "path": str(file),
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "ctime_ns": stat.st_ctime_ns,
    }
    memo = (
        Path(memo_dir).expanduser()
        / f"sha256-{hashlib.sha256(str(file).encode()).hexdigest()[:16]}.json"
    )
    digest = _remembered(memo, key)
    if digest is None:
        started_ns = time.time_ns()
        digest = sha256_file(file)
        if max(stat.st_ctime_ns, stat.st_mtime_ns) + SETTLE_NS < started_ns:
            atomic_write_json(memo, {**key, "sha256": digest})
    return SourceFile(
        path=str(file), num_bytes=stat.st_size, mtime_ns=stat.st_mtime_ns, sha256=digest
    )


def run_hash(parts: Mapping[str, str]) -> str:
    """Return the sha256 over named parts, regardless of their order."""
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True).encode()).hexdigest()


def file_parts(files: Mapping[str, list[SourceFile]]) -> dict[str, str]:
    """Return the hash parts of the files of each split: the sha256 by file name, and the files of
    each split.

    Folders are left out, except to tell two files of the same name apart, as
    `<split>/<position>/<name>`.
    """
    names = [Path(source.path).name for sources in files.values() for source in sources]
    parts: dict[str, str] = {}
    for split, sources in files.items():
        labels = []
        for position, name in enumerate(Path(source.path).name for source in sources):
            labels.append(name if names.count(name) == 1 else f"{split}/{position}/{name}")
        parts |= dict(zip(labels, (source.sha256 for source in sources), strict=True))
        parts[f"{split} files"] = ", ".join(labels)
    return parts


def explain_change(old_parts: Mapping[str, str], new_parts: Mapping[str, str]) -> str:
    """Describe the difference between two sets of hash parts: `train.jsonl changed`, `nothing
    changed`."""
    differences = []
    for name in sorted(old_parts.keys() | new_parts.keys()):
        old, new = old_parts.get(name), new_parts.get(name)
        if old == new:
            continue
        if old is None:
            differences.append(f"{name} was added")
        elif new is None:
            differences.append(f"{name} is no longer used")
        elif _DIGEST.fullmatch(new) or max(len(old), len(new)) > _LONGEST_SHOWN:
            differences.append(f"{name} changed")
        else:
            differences.append(f"{name} changed from {old or 'nothing'} to {new or 'nothing'}")
    return ", ".join(differences) or "nothing changed"


def _remembered(memo: Path, key: dict[str, object]) -> str | None:
    try:
        known = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = isinstance(known, dict) and all(known.get(name) == value for name, value in key.items())
    digest = known.get("sha256") if same else None
    if isinstance(digest, str) and _DIGEST.fullmatch(digest):
        return digest
    return None
