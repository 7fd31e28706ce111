"""Preparation of prompts for diffusion models: checked, filtered by length, published under their
run hash.

An item of `train.parquet` or `eval.parquet` is `{"prompt", "metadata", "media_refs", "uid"}`: the
text, the row's own metadata, its condition image as `{modality, role, uri, sha256}` (the digest
only of a local file), and the prompt's id. The images' content is part of the run hash: another
picture under the same name is another preparation.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rl_core.data.overlap.found import LEFT_OUT, REASON, Contamination, Overlaps, overlaps_of
from rl_core.data.overlap.sides import sides_of
from rl_core.data.prepare.fingerprint import fingerprint
from rl_core.data.prepare.items import MediaItem
from rl_core.data.prepare.job import Job
from rl_core.data.read.media_prompt_files import PromptFiles
from rl_core.data.read.media_rows import names_in_ids, placed_prompts
from rl_core.data.store.id_places import IdPlaces
from rl_core.data.store.prompt_rows import PreparedWriter
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
from schemas.rows.contract import SchemaName
from schemas.rows.media_checks import MediaLimits, is_local_file, is_remote, local_path
from schemas.rows.media_prompts import MediaPrompt
from schemas.sections.training import ContaminationPolicy

CODE_VERSION = "1"
"""Version of this code, raised whenever the same inputs would be prepared into other rows."""

_BATCH = 1024


class PromptCounter(Protocol):
    """Counter of a prompt's tokens as the model's own text encoders see it."""

    @property
    def limit(self) -> int:
        """Number of tokens beyond which the encoders truncate a prompt."""
        ...

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, including start and end."""
        ...


@dataclass(frozen=True)
class MediaSettings:
    """Settings of the preparation of media prompts."""

    recipe: Recipe
    tokenizer_id: str
    """Identity of the model's tokenizers in the run hash."""
    cache_root: Path
    memo_dir: Path
    contamination: Contamination = field(default_factory=Contamination)
    """Benchmarks, and what happens to training prompts that repeat them or held-out prompts."""


def plan_media(files: PromptFiles, settings: MediaSettings) -> CachePlan:
    """Predict whether `prepare_media` would be a cache hit, with the reason; loads no tokenizer and
    writes nothing but digests."""
    return plan_of(_job(files, settings))


def prepare_media(
    files: PromptFiles, settings: MediaSettings, counter: Callable[[], PromptCounter]
) -> CacheReceipt:
    """Publish `train.parquet` and `eval.parquet` in `<cache_root>/<name>-<hash12>`, if they do not
    exist.

    Args: counter: called only on a miss. Raises: DataError when rows are refused or none is left;
    UnsupportedMediaError, a NotImplementedError, for media that no loader implements; StorageError.
    """
    if settings.contamination.policy is ContaminationPolicy.FAIL:  # also where the cache is a hit
        _overlaps(files, settings.contamination, settings.memo_dir)
    return publish_cache(
        _job(files, settings), lambda work: _Build(settings, counter()).into(work, files)
    )


def _job(files: PromptFiles, settings: MediaSettings) -> Job:
    data = settings.recipe.data
    sources: dict[str, list[SourceFile]] = {}
    for split in SPLITS:
        sources[split] = [fingerprint(path, settings.memo_dir) for path in files[split]]
    parts = {
        "code version": CODE_VERSION,
        "tokenizer": settings.tokenizer_id,
        "max_prompt_length": str(data.max_prompt_length),
        "on_invalid": data.on_invalid,
        "max_bad_fraction": f"{data.max_bad_fraction:g}",
        "condition images": _images_digest(files, settings.memo_dir),
        **settings.contamination.hash_parts(settings.memo_dir),
    }
    return cache_job(settings.recipe.name, settings.cache_root, parts, sources)


def _images_digest(files: PromptFiles, memo_dir: Path) -> str:
    """Return the digest of the content of all local condition images, in the order of the rows;
    empty if there is none.

    A bad row or image is skipped here; the build reports it.
    """
    digest, num_images = hashlib.sha256(), 0
    for path in (path for split in SPLITS for path in files[split]):
        for prompt, _ in _readable(path):
            images = [ref.uri for ref in prompt.media_refs if not is_remote(ref.uri)]
            for image in filter(is_local_file, images):
                digest.update(fingerprint(local_path(image), memo_dir).sha256.encode())
                num_images += 1
    return digest.hexdigest() if num_images else ""


def _readable(path: Path) -> Iterator[tuple[MediaPrompt, str]]:
    """Yield the good rows of a file, with their places."""
    return placed_prompts(path, on_bad_row=lambda error, place: None)


def _all_prompts(paths: Sequence[Path]) -> Iterator[tuple[MediaPrompt | Exception, str]]:
    for path, name in zip(paths, names_in_ids(paths), strict=True):
        yield from _prompts(path, name)


def _prompts(path: Path, name: str) -> Iterator[tuple[MediaPrompt | Exception, str]]:
    """Yield each row of a file as a prompt, or its error, with its place; errors come last."""
    bad_rows: list[tuple[Exception, str]] = []
    yield from placed_prompts(
        path,
        on_bad_row=lambda error, place: bad_rows.append((error, place)),
        opened=MediaLimits(),
        name=name,
    )
    yield from bad_rows


def _overlaps(files: PromptFiles, contamination: Contamination, memo_dir: Path) -> Overlaps:
    """Return the training prompts that repeat others. Raises: DataError by the policy `fail`."""
    train, held_out = (files[split] for split in SPLITS)
    compared = sides_of(
        train, held_out, contamination.benchmarks, memo_dir, schema=SchemaName.MEDIA
    )
    overlaps = overlaps_of(*compared, contamination.policy, memo_dir)
    overlaps.refuse()
    return overlaps


class _Build:
    """State of one build: its settings and the rows that it dropped."""

    def __init__(self, settings: MediaSettings, counter: PromptCounter) -> None:
        self.contamination = settings.contamination
        self.data, self.memo_dir, self.counter = settings.recipe.data, settings.memo_dir, counter
        self.limit = min(self.data.max_prompt_length, counter.limit)
        self.dropped: Counter[str] = Counter({"too_long": 0, "invalid": 0})

    def into(self, work: Path, files: PromptFiles) -> Built:
        """Write both splits."""
        repeated = _overlaps(files, self.contamination, self.memo_dir)
        counts = {}
        for split in reversed(SPLITS):
            overlaps = repeated if split == "train" else Overlaps()
            counts[split] = self._split(work / f"{split}.parquet", files[split], overlaps)
            if not counts[split]:
                raise DataError(
                    f"no {split} prompt is left: {self.dropped['too_long']} have more than "
                    f"{self.limit} tokens (max_prompt_length {self.data.max_prompt_length}, the "
                    f"model's own limit {self.counter.limit}), {self.dropped['invalid']} are "
                    "invalid; nothing was published"
                )
        return built(counts, self.dropped)

    def _split(self, target: Path, paths: Sequence[Path], overlaps: Overlaps) -> int:
        ids = IdPlaces(paths)
        num_rows = num_bad = 0
        batch: list[MediaItem] = []
        with PreparedWriter(target) as writer:
            for found, place in _all_prompts(paths):
                num_rows += 1
                if isinstance(found, Exception):
                    bad = found
                else:
                    bad = self._problem(found, place, ids, overlaps)
                if bad is not None:
                    if self.data.on_invalid == "fail":
                        raise bad
                    num_bad += 1
                    continue
                assert isinstance(found, MediaPrompt)
                if overlaps.leaves_out(*_file_and_row(place)):
                    self.dropped[LEFT_OUT] += 1
                    continue
                batch.append(self._item(found))
                if len(batch) == _BATCH:
                    self._write(writer, batch)
                    batch = []
            self._write(writer, batch)
        self._check_share(num_bad, num_rows, paths)
        return writer.num_rows

    def _problem(
        self, prompt: MediaPrompt, place: str, ids: IdPlaces, overlaps: Overlaps
    ) -> DataError | None:
        repeated = ids.problem(prompt.prompt_id, place)
        if repeated is not None:
            return DataError(repeated.at(place))
        file, row = _file_and_row(place)
        found = overlaps.rejections(file, [row])
        if not found:
            return None
        return DataError(f"{place} field prompt: {REASON}; expected {found[0].expected}")

    def _item(self, prompt: MediaPrompt) -> MediaItem:
        refs = []
        for ref in prompt.media_refs:
            placed = {"modality": str(ref.modality), "role": str(ref.role), "uri": ref.uri}
            if not is_remote(ref.uri):
                placed["sha256"] = fingerprint(local_path(ref.uri), self.memo_dir).sha256
            refs.append(placed)
        return {
            "prompt": prompt.prompt,
            "metadata": prompt.metadata,
            "media_refs": refs,
            "uid": prompt.prompt_id,
        }

    def _write(self, writer: PreparedWriter, items: list[MediaItem]) -> None:
        lengths = self.counter.lengths([item["prompt"] for item in items]) if items else []
        fitting = [place for place, length in enumerate(lengths) if length <= self.limit]
        self.dropped["too_long"] += len(items) - len(fitting)
        writer.write([items[place] for place in fitting], [lengths[place] for place in fitting])

    def _check_share(self, num_bad: int, num_rows: int, paths: Sequence[Path]) -> None:
        self.dropped["invalid"] += num_bad
        if num_bad > self.data.max_bad_fraction * num_rows:
            limit = f"more than max_bad_fraction {self.data.max_bad_fraction:g} allows"
            raise DataError(
                f"{', '.join(map(str, paths))}: {num_bad} of {num_rows} rows are refused, {limit}"
            )


def _file_and_row(place: str) -> tuple[str, int]:
    file, _, row = place.rpartition(":")
    return file, int(row)
