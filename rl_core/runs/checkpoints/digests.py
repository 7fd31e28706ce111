"""Digests of a checkpoint's files, by which a flipped bit or a file cut short is found before it is
trained on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rl_core.data.prepare.fingerprint import sha256_file

SENTINEL = ".complete"
NUM_READERS = 4
"""Files read at once; computing a digest leaves Python free."""


def digests_of(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file below a folder but the sentinel, by its path relative to the
    folder."""
    names = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != SENTINEL
    )
    with ThreadPoolExecutor(NUM_READERS) as readers:
        return dict(
            zip(names, readers.map(sha256_file, [folder / name for name in names]), strict=True)
        )


def damage_of(folder: Path) -> str | None:
    """Return what is wrong with a complete checkpoint; None if it is as it was written, or if its
    sentinel is of a version that recorded no digests."""
    try:
        recorded = json.loads((folder / SENTINEL).read_text(encoding="utf-8")).get("sha256", {})
        found = digests_of(folder) if recorded else {}
    except (ValueError, AttributeError, OSError) as error:
        return f"{folder / SENTINEL} cannot be read ({error})"
    for name, digest in recorded.items():
        if name not in found:
            return f"{folder / name} is missing"
        if found[name] != digest:
            return f"the content of {folder / name} has changed since it was written"
    return None
