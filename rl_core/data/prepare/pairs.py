"""Preparation of preference pairs: selection of the training and the held-out pairs of each source.

The result holds no pairs, only their locations: `train.parquet` and `eval.parquet` with `uid`, the
digest of the source and the index in it. Training reads the published cache of the stage `mpo`
itself, and only while its content has that digest.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_core.builtin.data.pair_fixture import make_pairs, planned_fixture
from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.data.prepare.fingerprint import fingerprint
from rl_core.data.prepare.job import Job
from rl_core.data.read.hub import DatasetNotHere
from rl_core.data.read.pair_files import (
    PairFile,
    Pairs,
    content_files,
    digest_of,
    is_cache,
    open_pairs,
    relative_images,
)
from rl_core.data.read.sources import data_files
from rl_core.data.store.publish import HASH_CHARS, Built
from rl_core.data.store.split_cache import (
    SPLITS,
    CachePlan,
    built,
    cache_job,
    plan_of,
    publish_cache,
)
from rl_core.errors import DataError
from schemas.receipts import CacheReceipt, SourceFile
from schemas.recipe import Recipe
from schemas.rows.preference_rows import PreferencePair
from schemas.sections.parts import Block
from schemas.sections.preference import PairSource

CODE_VERSION = "2"
"""Version of this code, raised whenever the same inputs would be prepared into other pairs."""


@dataclass(frozen=True)
class Located:
    """A source of pairs and its path."""

    source: PairSource
    path: Path
    entry: int = 0
    """Number of the recipe's entry that it is of; a folder or a dataset has several files."""
    goes_on: bool = False
    """True if the file before it is of the same entry."""

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
    return {
        split: [
            Located(source, path, number, goes_on=position > 0)
            for number, entry in enumerate(entries[split])
            for position, (source, path) in enumerate(_locate(entry, data_dir / "generated", make))
        ]
        for split in SPLITS
    }


def files_of(sources: Mapping[str, Sequence[Located]]) -> list[Path]:
    """Return the row files of all sources, each once, for validation."""
    files = [file for split in SPLITS for one in sources[split] for file in content_files(one.path)]
    return list(
        dict.fromkeys(
            file.resolve() for file in files if file.suffix != ".json" or file.name[:5] != "meta_"
        )
    )


def plan_pairs(recipe: Recipe, data_dir: Path, cache_root: Path) -> CachePlan:
    """Predict whether `prepare_pairs` would be a cache hit, with the reason; makes and writes
    nothing but digests."""
    sources = pair_sources(recipe, data_dir, make=False)
    absent = [one.path for split in SPLITS for one in sources[split] if not one.path.exists()]
    if absent:
        return CachePlan("", False, "the pairs would be made or fetched first", absent[0])
    return plan_of(_job(recipe, sources, cache_root, data_dir / "memo"))


def prepare_pairs(recipe: Recipe, data_dir: Path, cache_root: Path) -> CacheReceipt:
    """Publish `train.parquet` and `eval.parquet` in `<cache_root>/<name>-<hash12>`, if they do not
    exist.

    Raises: DataError when rows are refused or none is left; StorageError when nothing can be
    written.
    """
    sources = pair_sources(recipe, data_dir)
    job = _job(recipe, sources, cache_root, data_dir / "memo")
    places = {digest_of(one.path): str(one.path) for split in SPLITS for one in sources[split]}
    return publish_cache(job, lambda work: _build(work, sources, recipe), places=places)


def _locate(entry: str | Block, folder: Path, make: bool) -> list[tuple[PairSource, Path]]:
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


def _job(
    recipe: Recipe, sources: Mapping[str, Sequence[Located]], cache_root: Path, memo_dir: Path
) -> Job:
    files: dict[str, list[SourceFile]] = {}
    for split in SPLITS:
        known = {file.path for found in files.values() for file in found}
        found = [
            fingerprint(file, memo_dir)
            for one in sources[split]
            for file in content_files(one.path)
        ]
        files[split] = [file for file in found if file.path not in known]
    parts = {
        "code version": CODE_VERSION,
        "on_invalid": recipe.data.on_invalid,
        "max_bad_fraction": f"{recipe.data.max_bad_fraction:g}",
    }
    parts |= {
        f"{split} pairs": "; ".join(one.describe() for one in sources[split]) for split in SPLITS
    }
    return cache_job(recipe.name, cache_root, parts, files)


def _build(work: Path, sources: Mapping[str, Sequence[Located]], recipe: Recipe) -> Built:
    import pyarrow as pa
    import pyarrow.parquet as pq

    dropped: Counter[str] = Counter({"invalid": 0, "also held out": 0})
    counts: dict[str, int] = {}
    held_out: set[str] = set()
    for split in reversed(SPLITS):
        columns: dict[str, list[object]] = {"uid": [], "source": [], "row": []}
        taken: Counter[int] = Counter()
        for one in sources[split]:
            digest = digest_of(one.path)
            for index, question, uid in _chosen(
                one, digest, recipe, dropped, held_out if split == "train" else set(), taken
            ):
                if split == "eval":
                    held_out.add(question)
                for name, value in zip(columns, (uid, digest, index), strict=True):
                    columns[name].append(value)
        counts[split] = len(columns["uid"])
        if not counts[split]:
            raise DataError(
                f"no {split} pair is left ({dict(dropped)} were dropped); nothing was published"
            )
        pq.write_table(pa.table(columns), work / f"{split}.parquet")
    return built(counts, dropped)


def _chosen(
    one: Located,
    digest: str,
    recipe: Recipe,
    dropped: Counter[str],
    held_out: set[str],
    taken: Counter[int],
) -> Iterator[tuple[int, str, str]]:
    """Yield index, question and uid of each pair that a source contributes to its split.

    Args: held_out: questions to leave out. taken: number of pairs of each entry so far.
    """
    bad: list[DataError] = []
    pairs = open_pairs(one.path, digest, lambda _, error: bad.append(error))
    for index, pair in _readable(pairs, bad):
        question, uid = _identity(pair, one.path)
        if one.source.split and belongs_to_eval(question, one.source.eval_fraction) != (
            one.source.split == "eval"
        ):
            continue
        if question in held_out:
            dropped["also held out"] += 1
            continue
        if one.source.size is not None and taken[one.entry] == one.source.size:
            break
        taken[one.entry] += 1
        yield index, question, uid
    _check_policy(bad, pairs, recipe, dropped)


def _readable(pairs: Pairs, bad: list[DataError]) -> Iterator[tuple[int, PreferencePair]]:
    for index in range(len(pairs)):
        try:
            yield index, pairs[index]
        except DataError as error:
            bad.append(error)


def _check_policy(
    bad: Sequence[DataError], pairs: Pairs, recipe: Recipe, dropped: Counter[str]
) -> None:
    dropped["invalid"] += len(bad)
    num_unreadable = len(bad) if isinstance(pairs, PairFile) else 0
    if bad and recipe.data.on_invalid == "fail":
        raise DataError(f"{bad[0]}\nvalidate the file to see every problem, or drop bad rows")
    if len(bad) > recipe.data.max_bad_fraction * (len(pairs) + num_unreadable):
        limit = f"more than max_bad_fraction {recipe.data.max_bad_fraction:g} allows"
        raise DataError(f"{bad[0]}\n{len(bad)} of {len(pairs)} rows are refused, {limit}")


def _identity(pair: PreferencePair, path: Path) -> tuple[str, str]:
    """Return digests of the question with its images, and of the pair, which do not depend on the
    source's path."""
    asked = [pair.question, *relative_images(pair.images, path)]
    question = json.dumps(asked, ensure_ascii=False)
    whole = json.dumps([*asked, pair.chosen, pair.rejected], ensure_ascii=False)
    return question, hashlib.sha256(whole.encode()).hexdigest()[:20]
