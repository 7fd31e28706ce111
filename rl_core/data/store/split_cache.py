"""A recipe's cache: `train.parquet` and `eval.parquet` in a folder named after the recipe and the
run hash.

Shared by the preparations of prompts, media prompts and pairs, which differ in the parts of the
hash and in how the two files are built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_core.data.prepare.fingerprint import file_parts, run_hash
from rl_core.data.prepare.job import Job, plan_job, run_job
from rl_core.data.store.publish import HASH_CHARS, Build, Built
from schemas.receipts import CacheReceipt, SourceFile

SPLITS = ("train", "eval")
_DROPPED = "dropped: "


@dataclass(frozen=True)
class CachePlan:
    """Prediction of a preparation: hit or build, the folder, and the reason."""

    run_hash: str
    hit: bool
    explanation: str
    folder: Path


def cache_job(
    name: str, cache_root: Path, parts: Mapping[str, str], files: Mapping[str, list[SourceFile]]
) -> Job:
    """Return the job of a cache.

    Args: parts: inputs of the rows besides the files. files: files of each split.
    """
    whole = {**parts, **file_parts(files)}
    folder = cache_root.expanduser() / f"{name}-{run_hash(whole)[:HASH_CHARS]}"
    return Job(
        name, folder, whole, [file for split in SPLITS for file in files[split]], hashed_folder=True
    )


def plan_of(job: Job) -> CachePlan:
    """Predict whether `publish_cache` would be a hit, with the reason."""
    plan = plan_job(job)
    return CachePlan(job.run_hash, plan.hit, plan.explanation, job.target)


def publish_cache(
    job: Job, build: Build, *, places: Mapping[str, str] | None = None
) -> CacheReceipt:
    """Build the job if its result does not exist, and return the receipt.

    Args: places: paths of sources that training reads itself.
    """
    sentinel, receipt = run_job(job, build)
    counts = sentinel.counts
    return CacheReceipt(
        run_hash=job.run_hash,
        path=str(job.target),
        hit=receipt.hit,
        explanation=receipt.explanation,
        num_train_rows=counts["train"],
        num_eval_rows=counts["eval"],
        dropped={
            key.removeprefix(_DROPPED): count
            for key, count in counts.items()
            if key.startswith(_DROPPED)
        },
        sources=list(job.sources),
        hash_parts=dict(job.parts),
        places=dict(places or {}),
    )


def built(counts: Mapping[str, int], dropped: Mapping[str, int]) -> Built:
    """Return the result of a build.

    Args: counts: rows of each split. dropped: rows that were left out, by reason.
    """
    return Built({**counts, **{f"{_DROPPED}{reason}": count for reason, count in dropped.items()}})
