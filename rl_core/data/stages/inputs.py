"""Content digests of many input files at once: one memo, all cores."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_core.data.prepare.fingerprint import SETTLE_NS, sha256_file
from rl_core.data.prepare.workers import num_cores
from rl_core.data.store.atomic import atomic_write_text
from rl_core.errors import DataError, StorageError
from schemas.receipts import SourceFile

_KEY = ("num_bytes", "mtime_ns", "ctime_ns")


def fingerprint_all(
    files: Mapping[str, Path], memo_dir: Path, advance: Callable[[int], None] = lambda _count: None
) -> dict[str, SourceFile]:
    """Return size, time and sha256 of every file, by label. Files whose size and times are
    unchanged are not read again.

    Args: advance: receives the number of files done. Raises: DataError when a file is missing.
    """
    paths = {label: path.resolve() for label, path in files.items()}
    names = "".join(map(str, paths.values())).encode()
    memo = memo_dir / f"inputs-{hashlib.sha256(names).hexdigest()[:16]}.json"
    known = _read(memo)

    def one(item: tuple[str, Path]) -> dict[str, object]:
        found = _identify(item[1], known.get(item[0], {}))
        advance(1)
        return found

    # hashlib lets go of the interpreter's lock, so threads use all cores.
    with ThreadPoolExecutor(num_cores()) as pool:
        fresh = dict(zip(paths, pool.map(one, paths.items()), strict=True))
    settled = {label: found for label, found in fresh.items() if found.pop("settled")}
    if settled != known:
        # A memo only saves time; a read-only disk does without.
        with suppress(StorageError):
            atomic_write_text(memo, json.dumps(settled))
    return {label: _source(paths[label], found) for label, found in fresh.items()}


def _identify(path: Path, known: Mapping[str, object]) -> dict[str, object]:
    try:
        started_ns, stat = time.time_ns(), path.stat()
        key = dict(zip(_KEY, (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns), strict=True))
        if all(known.get(name) == value for name, value in key.items()) and "sha256" in known:
            return {**known, "settled": True}
        # A file changed just now may change again within the same time stamp, so it is not
        # remembered.
        settled = max(stat.st_mtime_ns, stat.st_ctime_ns) + SETTLE_NS < started_ns
        return {**key, "sha256": sha256_file(path), "settled": settled}
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); give the path of an existing file"
        ) from error


def _source(path: Path, found: Mapping[str, Any]) -> SourceFile:
    return SourceFile(
        path=str(path),
        num_bytes=found["num_bytes"],
        mtime_ns=found["mtime_ns"],
        sha256=found["sha256"],
    )


def _read(memo: Path) -> dict[str, dict[str, object]]:
    try:
        found = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
