"""A recipe's cache: `train.parquet` and `eval.parquet` in a folder named after the recipe and the run hash.

What the preparations of prompts, of media prompts and of pairs share; they differ in what goes into the hash and how
the two files are built.
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
    """What a preparation would do: hit or build, where, and why."""

    run_hash: str
    hit: bool
    explanation: str
    folder: Path


def cache_job(name: str, cache_root: Path, parts: Mapping[str, str], files: Mapping[str, list[SourceFile]]) -> Job:
    """The job of a cache. Args: parts: what decides the rows besides the files. files: of each split."""
    whole = {**parts, **file_parts(files)}
    folder = cache_root.expanduser() / f"{name}-{run_hash(whole)[:HASH_CHARS]}"
    return Job(name, folder, whole, [file for split in SPLITS for file in files[split]], hashed_folder=True)


def plan_of(job: Job) -> CachePlan:
    """Whether `publish_cache` would hit, and why."""
    plan = plan_job(job)
    return CachePlan(job.run_hash, plan.hit, plan.explanation, job.target)


def publish_cache(job: Job, build: Build, *, places: Mapping[str, str] | None = None) -> CacheReceipt:
    """Build the job unless it is there, and say so. Args: places: of sources that training reads itself."""
    sentinel, receipt = run_job(job, build)
    counts = sentinel.counts
    return CacheReceipt(
        run_hash=job.run_hash,
        path=str(job.target),
        hit=receipt.hit,
        explanation=receipt.explanation,
        num_train_rows=counts["train"],
        num_eval_rows=counts["eval"],
        dropped={key.removeprefix(_DROPPED): count for key, count in counts.items() if key.startswith(_DROPPED)},
        sources=list(job.sources),
        hash_parts=dict(job.parts),
        places=dict(places or {}),
    )


def built(counts: Mapping[str, int], dropped: Mapping[str, int]) -> Built:
    """What a build returns. Args: counts: rows of each split. dropped: rows that were left out, by reason."""
    return Built({**counts, **{f"{_DROPPED}{reason}": count for reason, count in dropped.items()}})
