"""Verification of the inputs and outputs of a model: source files, prepared rows, exported
weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rl_core.data.prepare.fingerprint import sha256_file
from rl_core.data.store.publish import damaged_file, parse_sentinel
from rl_core.data.store.weights import weights_digest
from schemas.receipts import CacheReceipt, SourceFile


class Condition(StrEnum):
    """State of a recorded file or folder."""

    SAME = "same"
    """It has the digest that was recorded."""
    CHANGED = "changed"
    """It has another digest."""
    MISSING = "missing"
    """It does not exist (any more)."""


@dataclass(frozen=True)
class Check:
    """State of one recorded file or folder."""

    what: str
    """Kind of thing that was checked: `source`, `cache` or `weights`."""
    path: str
    condition: Condition
    detail: str = ""

    def __str__(self) -> str:
        return (
            f"{self.condition:8} {self.what:8} "
            f"{self.path}{f'  ({self.detail})' if self.detail else ''}"
        )


def check_sources(sources: Sequence[SourceFile]) -> Iterator[Check]:
    """Yield the state of every source file, with digests computed anew."""
    for source in sources:
        path = Path(source.path)
        if not path.is_file():
            yield Check("source", source.path, Condition.MISSING)
        elif (found := sha256_file(path)) == source.sha256:
            yield Check("source", source.path, Condition.SAME)
        else:
            yield Check(
                "source",
                source.path,
                Condition.CHANGED,
                f"sha256 {found}, recorded {source.sha256}",
            )


def check_cache(cache: CacheReceipt) -> Check:
    """Return the state of the prepared rows, with every file's digest computed anew."""
    sentinel = parse_sentinel(cache.path)
    if sentinel is None:
        return Check("cache", cache.path, Condition.MISSING, "no complete preparation is there")
    if sentinel.run_hash != cache.run_hash:
        return Check(
            "cache", cache.path, Condition.CHANGED, f"holds preparation {sentinel.run_hash[:12]}"
        )
    damaged = damaged_file(cache.path, sentinel)
    return Check(
        "cache", cache.path, Condition.CHANGED if damaged else Condition.SAME, damaged or ""
    )


def check_weights(folder: str, recorded: str) -> Check:
    """Return the state of the exported weights.

    Args: recorded: result of `weights_digest` at registration.
    """
    if not Path(folder).is_dir():
        return Check("weights", folder, Condition.MISSING)
    found = weights_digest(folder)
    if found == recorded:
        return Check("weights", folder, Condition.SAME)
    return Check(
        "weights", folder, Condition.CHANGED, f"digest {found or 'none'}, recorded {recorded}"
    )
