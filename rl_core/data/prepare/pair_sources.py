"""Sources of preference pairs: where they lie, and which pairs each gives to its split."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.builtin.data.pair_fixture import make_pairs, planned_fixture
from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.data.overlap.rows import Row, Rows
from rl_core.data.overlap.sides import Sides, row_of_pair, rows_of
from rl_core.data.read.hub import DatasetNotHere
from rl_core.data.read.pair_files import (
    Pairs,
    content_files,
    digest_of,
    is_cache,
    open_pairs,
    relative_images,
)
from rl_core.data.read.sources import data_files
from rl_core.data.store.publish import HASH_CHARS
from rl_core.data.store.split_cache import SPLITS
from rl_core.errors import DataError
from schemas.recipe import Recipe
from schemas.rows.preference_rows import PreferencePair
from schemas.sections.preference import PairSource


@dataclass(frozen=True)
class Located:
    """A source of pairs and its path."""

    source: PairSource
    path: Path
    entry: int = 0
    """Number of the recipe's entry that it is of; a folder or a dataset has several files."""
    goes_on: bool = False
    """True if the file before it is of the same entry."""

    def takes(self, question: str) -> bool:
        """Return True if a question is of the split that this source is for."""
        split = self.source.split
        is_eval = split is not None and belongs_to_eval(question, self.source.eval_fraction)
        return split is None or is_eval == (split == "eval")

    def describe(self) -> str:
        """Describe the selection of its pairs, for the run hash, without its path."""
        kept = self.source.model_dump(include={"split", "eval_fraction", "size"}, exclude_none=True)
        joined = "and " if self.goes_on else ""
        return f"{joined}{digest_of(self.path)[:HASH_CHARS]} {json.dumps(kept, sort_keys=True)}"


def pair_sources(recipe: Recipe, data_dir: Path, *, make: bool = True) -> dict[str, list[Located]]:
    """Return the sources of each split, with fixtures made and datasets fetched on first use.

    Args: make: False only returns the paths of what is to be made or fetched. Raises: DataError
    when a path does not exist.
    """
    entries = {"train": recipe.data.train, "eval": recipe.data.eval}
    located: dict[str, list[Located]] = {}
    for split in SPLITS:
        located[split] = []
        for number, entry in enumerate(entries[split]):
            for position, (source, path) in enumerate(_locate(entry, data_dir / "generated", make)):
                located[split].append(Located(source, path, number, goes_on=position > 0))
    return located


def files_of(sources: Mapping[str, Sequence[Located]]) -> list[Path]:
    """Return the row files of all sources, each once, for validation."""
    files = []
    for split in SPLITS:
        for one in sources[split]:
            files.extend(content_files(one.path))
    return list(
        dict.fromkeys(
            file.resolve() for file in files if file.suffix != ".json" or file.name[:5] != "meta_"
        )
    )


def pair_sides(
    sources: Mapping[str, Sequence[Located]], benchmarks: Sequence[Path], memo_dir: Path
) -> Sides:
    """Return the training pairs as rows, and the held-out pairs and benchmarks.

    All pairs of the training split are rows, also those beyond a source's `size`: it counts what is
    left after those that repeat others.
    """
    train = [_rows(one, Counter()) for one in sources["train"]]
    taken: Counter[int] = Counter()
    held_out = [_rows(one, taken, one.source.size) for one in sources["eval"]]
    return train, [*held_out, *rows_of(benchmarks, memo_dir, benchmark=True)]


def _rows(one: Located, taken: Counter[int], size: int | None = None) -> Rows:
    def read() -> Iterator[tuple[int, Row]]:
        if not one.goes_on:
            taken[one.entry] = 0
        # A size counts the pairs that are kept, so that only then it matters which are.
        pairs = open_pairs(
            one.path, digest_of(one.path), lambda *_: None, opens_images=size is not None
        )
        for index, pair in readable(pairs, []):
            if size is not None and taken[one.entry] == size:
                break
            if one.takes(identity(pair, one.path)[0]):
                taken[one.entry] += 1
                yield pairs.number_of(index), row_of_pair(pair)

    return Rows(str(one.path), read, one.path.parent, one.describe())


def readable(pairs: Pairs, bad: list[DataError]) -> Iterator[tuple[int, PreferencePair]]:
    """Yield the pairs with their indices; errors of the others are added to `bad`."""
    for index in range(len(pairs)):
        try:
            yield index, pairs[index]
        except DataError as error:
            bad.append(error)


def identity(pair: PreferencePair, path: Path) -> tuple[str, str]:
    """Return digests of the question with its images, and of the pair, which do not depend on the
    source's path."""
    asked = [pair.question, *relative_images(pair.images, path)]
    question = json.dumps(asked, ensure_ascii=False)
    whole = json.dumps([*asked, pair.chosen, pair.rejected], ensure_ascii=False)
    return question, hashlib.sha256(whole.encode()).hexdigest()[:20]


def _locate(entry: str | dict[str, Any], folder: Path, make: bool) -> list[tuple[PairSource, Path]]:
    source = PairSource(path=entry) if isinstance(entry, str) else PairSource(**entry)
    if source.path is None:
        return [(source, make_pairs(source, folder) if make else planned_fixture(source, folder))]
    path = Path(source.path).expanduser().absolute()
    if is_cache(path):
        return [(source, path)]
    try:
        files = data_files(source.path, download=make)
    except DatasetNotHere:
        if make:
            raise
        files = []
    missing = [file for file in files if not file.exists()]
    if missing:
        raise DataError(
            f"{source.path}: no such file or folder; name a published mpo cache (rl-train prep "
            "-c mpo), or files or a dataset with a question, a chosen and a rejected answer in "
            "each row"
        )
    return [(source, file.expanduser().absolute()) for file in files] or [(source, path)]
