"""The steps of every preparation: plan, build under a lock, publish, and write a receipt of every
attempt.

The text prompts of a recipe (`rl_core.data.prepare.prompts`) and the stages `mpo`, `text`,
`vision`, `diffusion` (`rl_core.data.stages`) are such jobs. They differ only in their inputs and
in how they are built.
"""

import hashlib
import os
import re
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rl_core.data.prepare.fingerprint import explain_change, run_hash
from rl_core.data.store.atomic import atomic_write_text
from rl_core.data.store.lock import Note
from rl_core.data.store.publish import (
    HASH_CHARS,
    RECEIPTS,
    SENTINEL,
    Build,
    Built,
    Sentinel,
    damaged_file,
    parse_sentinel,
    publish,
    receipts_dir,
)
from rl_core.errors import StorageError
from schemas.receipts import PrepReceipt, PrepStatus, SourceFile


@dataclass(frozen=True)
class Job:
    """A result to prepare, and its inputs."""

    name: str
    """Name of the stage or recipe."""
    folder: Path
    """Folder in which the result is published."""
    parts: Mapping[str, str]
    """Everything that determines the result's bytes; never the paths of inputs or outputs."""
    sources: Sequence[SourceFile]
    sentinel: str = SENTINEL
    hashed_folder: bool = False
    """True if the folder's name ends in the run hash, so that other versions can exist next to
    it."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Descriptive fields of the receipt: artifact, artifact_path, source_uri, revision."""

    @property
    def run_hash(self) -> str:
        return run_hash(self.parts)

    @property
    def target(self) -> Path:
        return self.folder.expanduser().resolve()

    @property
    def receipt_path(self) -> Path:
        return receipts_dir(self.target) / f"{self.run_hash[:HASH_CHARS]}.json"

    @property
    def memo_path(self) -> Path:
        return self.receipt_path.with_suffix(".files.json")


@dataclass(frozen=True)
class Plan:
    """Prediction whether a preparation would be a cache hit, with the reason."""

    hit: bool
    explanation: str


def plan_job(job: Job) -> Plan:
    """Predict what `run_job` would do; writes nothing but the memo of file times."""
    sentinel = parse_sentinel(job.target, job.sentinel)
    if sentinel is not None and sentinel.run_hash == job.run_hash:
        damaged = damaged_file(
            job.target, sentinel, job.memo_path if job.memo_path.is_file() else None
        )
        if damaged is None:
            return Plan(True, _hit_explanation(job))
        return Plan(False, f"the prepared files in {job.target} are missing or damaged: {damaged}")
    former = sentinel.parts if sentinel is not None else _latest_parts(job)
    if former is None:
        return Plan(False, f"first preparation of {job.name}")
    if former == dict(job.parts):
        return Plan(False, f"the prepared files in {job.target} are missing or damaged")
    return Plan(False, explain_change(former, job.parts))


def run_job(
    job: Job,
    build: Build,
    *,
    check: Callable[[Path, Built], None] | None = None,
    force: bool = False,
    note: Note | None = None,
) -> tuple[Sentinel, PrepReceipt]:
    """Publish the job's result if it does not exist; of several callers one builds and the others
    wait for it.

    Args: check: checks the finished work before it is published. force: build again even on a hit.
    note: receives a message about what this waits for. Raises: any error of the build, after
    writing a receipt of the failure; StorageError.
    """
    started = time.monotonic()
    drafts: list[PrepReceipt] = []

    def recorded(work: Path) -> Built:
        drafts.append(_draft(job, "forced" if force else plan_job(job).explanation))
        _write_receipt(job, drafts[0])
        return build(work)

    try:
        sentinel, hit = publish(
            job.target,
            job.run_hash,
            recorded,
            parts=job.parts,
            sentinel_name=job.sentinel,
            memo=job.memo_path,
            check=check,
            force=force,
            note=note,
        )
    except BaseException as error:
        if drafts:
            # The receipt is a courtesy; what went wrong is raised whether or not it can be written
            # (a full disk).
            with suppress(StorageError):
                _write_receipt(job, _failed(drafts[0], error, time.monotonic() - started))
        raise
    if hit:
        return sentinel, _hit_receipt(job, sentinel)
    receipt = _completed(drafts[0], sentinel, time.monotonic() - started)
    _write_receipt(job, receipt)
    return sentinel, receipt


def read_receipt(path: Path) -> PrepReceipt | None:
    """Read a receipt from its file; return None if there is none."""
    try:
        return PrepReceipt.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None


def _draft(job: Job, explanation: str) -> PrepReceipt:
    return PrepReceipt(
        name=job.name,
        status=PrepStatus.STARTED,
        run_hash=job.run_hash,
        output=str(job.target),
        explanation=explanation,
        sources=list(job.sources),
        hash_parts=dict(job.parts),
        process=f"{os.getpid()}@{socket.gethostname()}",
        started_at=_now(),
        **job.details,
    )


def _completed(draft: PrepReceipt, sentinel: Sentinel, elapsed_s: float) -> PrepReceipt:
    listing = "".join(f"{digest}  {name}\n" for name, digest in sorted(sentinel.files.items()))
    return draft.model_copy(
        update={
            "status": PrepStatus.COMPLETED,
            "row_stats": sentinel.counts,
            "num_files": len(sentinel.files),
            "files_digest": hashlib.sha256(listing.encode()).hexdigest(),
            "finished_at": _now(),
            "elapsed_sec": round(elapsed_s, 3),
        }
    )


def _failed(draft: PrepReceipt, error: BaseException, elapsed_s: float) -> PrepReceipt:
    return draft.model_copy(
        update={
            "status": PrepStatus.FAILED,
            "finished_at": _now(),
            "elapsed_sec": round(elapsed_s, 3),
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(error)),
        }
    )


def _hit_receipt(job: Job, sentinel: Sentinel) -> PrepReceipt:
    """Return the builder's receipt with this caller's explanation; made anew if the builder was
    killed before writing it."""
    known = read_receipt(job.receipt_path)
    if known is None or known.status is not PrepStatus.COMPLETED:
        known = _completed(
            _draft(job, "published by a process that ended before it wrote its receipt"),
            sentinel,
            0.0,
        )
        with suppress(StorageError):
            _write_receipt(job, known)
    # The inputs may lie elsewhere now; their content is what was prepared.
    return known.model_copy(
        update={
            "hit": True,
            "explanation": _hit_explanation(job),
            "output": str(job.target),
            "sources": list(job.sources),
            **job.details,
        }
    )


def _write_receipt(job: Job, receipt: PrepReceipt) -> None:
    atomic_write_text(job.receipt_path, receipt.model_dump_json(indent=2) + "\n")


def _latest_parts(job: Job) -> dict[str, str] | None:
    """Return the parts of the last completed preparation of this name."""
    folders = [receipts_dir(job.target)]
    if job.hashed_folder:
        pattern = re.compile(rf"{re.escape(job.name)}-[0-9a-f]{{{HASH_CHARS}}}")
        root = job.target.parent / RECEIPTS
        if root.is_dir():
            folders = [path for path in root.iterdir() if pattern.fullmatch(path.name)]
        else:
            folders = []
    receipts = []
    for folder in folders:
        for path in folder.glob(f"{'[0-9a-f]' * HASH_CHARS}.json"):
            receipts.append(read_receipt(path))
    done = []
    for one in receipts:
        if one is not None and one.status is PrepStatus.COMPLETED:
            done.append(one)
    if done:
        return max(done, key=lambda one: one.finished_at or "").hash_parts
    return None


def _hit_explanation(job: Job) -> str:
    try:
        written = datetime.fromtimestamp((job.target / job.sentinel).stat().st_mtime, UTC)
    except OSError:  # another preparation of the same output is just replacing it
        return "cached: nothing changed"
    return f"cached: nothing changed since {written.isoformat(timespec='seconds')}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
