"""Readers of pairs of answers: a cache that the stage `mpo` published, or a file of rows.

Both return a pair by its index, and both have a digest of all their content: a published cache its
run hash, a file its sha256. A reader that expects a digest refuses any other content.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rl_core.data.order.preference_dataset import META, SENTINEL, PreferenceDataset, read_meta
from rl_core.data.prepare.fingerprint import sha256_file
from rl_core.data.read.files.text_files import OnBadLine
from rl_core.data.read.readers import raise_it, raw_values
from rl_core.data.read.remote import base_of
from rl_core.data.read.unpaired_rows import paired
from rl_core.data.store.publish import parse_sentinel
from rl_core.data.store.spool import Spool
from rl_core.errors import DataError
from schemas.rows.preference_rows import PreferencePair, preference_pair
from schemas.rows.problems import Problem


class Pairs(Protocol):
    """Pairs by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> PreferencePair:
        """Return a pair.

        Raises: DataError naming file and row when it is not a valid pair.
        """
        ...

    def subset_of(self, index: int) -> str:
        """Return the name under which a blend weighs this pair."""
        ...

    def number_of(self, index: int) -> int:
        """Return the number of a pair's row, from 1."""
        ...


class PairFile:
    """Rows of one file, kept in a temporary one. Images are relative to its folder; text-only rows
    have none.

    Args: on_bad_line: receives lines that cannot be read, which otherwise raise DataError.
    opens_images: refuse pairs with an image that is missing or cannot be decoded.
    """

    def __init__(
        self,
        path: Path | str,
        on_bad_line: OnBadLine | None = None,
        *,
        opens_images: bool = False,
    ) -> None:
        self.path, self.opens_images = Path(path).expanduser(), opens_images
        values = raw_values(self.path, on_bad_line=on_bad_line)
        self._rows = Spool.of(paired(values, str(self.path), on_bad_line or raise_it))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> PreferencePair:
        raw = self._rows[index]
        place = f"{self.path}:{raw.number}"
        if isinstance(raw.value, str):
            expected = "an object with question, chosen and rejected"
            raise DataError(Problem("question", "missing", raw.value, expected).at(place))
        return preference_pair(
            raw.value,
            folder=base_of(self.path),
            place=place,
            needs_image=False,
            opens_images=self.opens_images,
        )

    def subset_of(self, index: int) -> str:
        return self.path.stem

    def number_of(self, index: int) -> int:
        return self._rows[index].number


def is_cache(path: Path) -> bool:
    """Return True if a path is a published cache of the stage `mpo`, whole or not."""
    return path.name == META or any((path / name).is_file() for name in (META, SENTINEL))


def digest_of(path: Path) -> str:
    """Return the digest of the content of a cache or file. Raises: DataError when a cache is not
    complete."""
    if not is_cache(path):
        return sha256_file(path)
    root = cache_root(path)
    sentinel = parse_sentinel(root, SENTINEL)
    if sentinel is None:
        raise DataError(
            f"{root}: no readable {SENTINEL}, so this is no published mpo cache; run rl-train "
            "prep -c mpo"
        )
    return sentinel.run_hash


def open_pairs(
    path: Path, digest: str, on_bad_line: OnBadLine | None = None, *, opens_images: bool = False
) -> Pairs:
    """Open the pairs of a cache or file.

    Args: opens_images: as for `PairFile`; a published cache has checked its own.
    Raises: DataError when its content does not have the `digest`.
    """
    if is_cache(path):
        return PreferenceDataset(cache_root(path), digest)
    found = sha256_file(path)
    if found != digest:
        raise DataError(
            f"{path}: has changed since it was prepared ({found[:12]}, not {digest[:12]}); "
            "prepare again"
        )
    return PairFile(path, on_bad_line, opens_images=opens_images)


def content_files(path: Path) -> list[Path]:
    """Return the files that determine the pairs: the file itself, or a cache's meta and
    annotations."""
    if not is_cache(path):
        return [path]
    root = cache_root(path)
    return [root / META, *(root / entry["annotation"] for entry in read_meta(root).values())]


def cache_root(path: Path) -> Path:
    """Return the folder of a cache that is named by itself or by its meta file."""
    return path.parent if path.name == META else path


def relative_images(images: Sequence[str], path: Path) -> list[str]:
    """Return image paths as written in the cache or file at `path`, independent of its location."""
    root = f"{(cache_root(path) if is_cache(path) else path.parent).absolute()}/"
    return [image.removeprefix(root) for image in images]
