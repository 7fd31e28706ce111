"""Preparation of preference pairs: selection of the training and the held-out pairs of each source.

The result holds no pairs, only their locations: `train.parquet` and `eval.parquet` with `uid`, the
digest of the source and the index in it. Training reads the published cache of the stage `mpo`
itself, and only while its content has that digest.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rl_core.data.overlap.found import LEFT_OUT, REPORTED, Contamination, Overlaps, overlaps_of
from rl_core.data.prepare.fingerprint import fingerprint
from rl_core.data.prepare.job import Job
from rl_core.data.prepare.pair_sources import (
    Located,
    identity,
    pair_sides,
    pair_sources,
    readable,
)
from rl_core.data.read.pair_files import (
    PairFile,
    Pairs,
    content_files,
    digest_of,
    open_pairs,
)
from rl_core.data.store.pair_places import PlaceWriter
from rl_core.data.store.publish import Built
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
from schemas.sections.training import ContaminationPolicy

CODE_VERSION = "2"
"""Version of this code, raised whenever the same inputs would be prepared into other pairs."""


def plan_pairs(
    recipe: Recipe,
    data_dir: Path,
    cache_root: Path,
    contamination: Contamination = REPORTED,
) -> CachePlan:
    """Predict whether `prepare_pairs` would be a cache hit, with the reason; makes and writes
    nothing but digests."""
    sources = pair_sources(recipe, data_dir, make=False)
    absent = []
    for split in SPLITS:
        for one in sources[split]:
            if not one.path.exists():
                absent.append(one.path)
    if absent:
        return CachePlan("", False, "the pairs would be made or fetched first", absent[0])
    return plan_of(_job(recipe, sources, cache_root, data_dir / "memo", contamination))


def prepare_pairs(
    recipe: Recipe,
    data_dir: Path,
    cache_root: Path,
    contamination: Contamination = REPORTED,
) -> CacheReceipt:
    """Publish `train.parquet` and `eval.parquet` in `<cache_root>/<name>-<hash12>`, if they do not
    exist.

    Raises: DataError when rows are refused or none is left; StorageError when nothing can be
    written.
    """
    sources = pair_sources(recipe, data_dir)
    memo_dir = data_dir / "memo"
    job = _job(recipe, sources, cache_root, memo_dir, contamination)
    if contamination.policy is ContaminationPolicy.FAIL:  # also where the cache is a hit
        _overlaps(sources, contamination, memo_dir)
    places = {}
    for split in SPLITS:
        for one in sources[split]:
            places[digest_of(one.path)] = str(one.path)
    return publish_cache(
        job, lambda work: _build(work, sources, recipe, contamination, memo_dir), places=places
    )


def _job(
    recipe: Recipe,
    sources: Mapping[str, Sequence[Located]],
    cache_root: Path,
    memo_dir: Path,
    contamination: Contamination,
) -> Job:
    files: dict[str, list[SourceFile]] = {}
    for split in SPLITS:
        known = {file.path for found in files.values() for file in found}
        found = []
        for one in sources[split]:
            for file in content_files(one.path):
                found.append(fingerprint(file, memo_dir))
        files[split] = [file for file in found if file.path not in known]
    parts = {
        "code version": CODE_VERSION,
        "on_invalid": recipe.data.on_invalid,
        "max_bad_fraction": f"{recipe.data.max_bad_fraction:g}",
        **contamination.hash_parts(memo_dir),
    }
    parts |= {
        f"{split} pairs": "; ".join(one.describe() for one in sources[split]) for split in SPLITS
    }
    return cache_job(recipe.name, cache_root, parts, files)


def _overlaps(
    sources: Mapping[str, Sequence[Located]], contamination: Contamination, memo_dir: Path
) -> Overlaps:
    """Return the training pairs that repeat others. Raises: DataError by the policy `fail`."""
    compared = pair_sides(sources, contamination.benchmarks, memo_dir)
    overlaps = overlaps_of(*compared, contamination.policy, memo_dir)
    overlaps.refuse()
    return overlaps


def _build(
    work: Path,
    sources: Mapping[str, Sequence[Located]],
    recipe: Recipe,
    contamination: Contamination,
    memo_dir: Path,
) -> Built:
    dropped: Counter[str] = Counter({"invalid": 0, "also held out": 0})
    counts: dict[str, int] = {}
    repeated = _overlaps(sources, contamination, memo_dir)
    for split in reversed(SPLITS):
        taken: Counter[int] = Counter()
        overlaps = repeated if split == "train" else Overlaps()
        with PlaceWriter(work / f"{split}.parquet") as writer:
            for one in sources[split]:
                digest = digest_of(one.path)
                for index, uid in _chosen(one, digest, recipe, dropped, overlaps, taken):
                    writer.write(uid, digest, index)
        counts[split] = writer.num_rows
        if not counts[split]:
            raise DataError(
                f"no {split} pair is left ({dict(dropped)} were dropped); nothing was published"
            )
    return built(counts, dropped)


def _chosen(
    one: Located,
    digest: str,
    recipe: Recipe,
    dropped: Counter[str],
    overlaps: Overlaps,
    taken: Counter[int],
) -> Iterator[tuple[int, str]]:
    """Yield index and uid of each pair that a source contributes to its split.

    Args: overlaps: pairs to leave out. taken: number of pairs of each entry so far.
    """
    bad: list[DataError] = []
    pairs = open_pairs(one.path, digest, lambda _, error: bad.append(error), opens_images=True)
    for index, pair in readable(pairs, bad):
        question, uid = identity(pair, one.path)
        if not one.takes(question):
            continue
        number = pairs.number_of(index)
        if overlaps.leaves_out(one.path, number):
            dropped[LEFT_OUT] += 1
            continue
        if overlaps.rejections(one.path, [number]):
            dropped["also held out"] += 1
            continue
        if one.source.size is not None and taken[one.entry] == one.source.size:
            break
        taken[one.entry] += 1
        yield index, uid
    _check_policy(bad, pairs, recipe, dropped)


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
