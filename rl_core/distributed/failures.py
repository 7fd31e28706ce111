"""Failures of ranks: each rank reports its own, and the one that caused the others is raised."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from rl_core.errors import (
    RLTrainError,
    SiblingFailed,
    WorkerDied,
    WorkerError,
    WorkerHung,
    WorkerOutOfMemory,
)

MEMORY_ADVICE = (
    "lower placement.micro_batch_size (training) or rollout.max_batch_size (sampling), turn on "
    "fsdp.activation_checkpointing, shorten rollout.max_new_tokens, train adapters (lora), or "
    "use more devices"
)
# gloo and NCCL raise plain RuntimeErrors when a sibling is gone or late; only their text tells.
_COLLECTIVE_MARKS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
_MEMORY_MARKS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "std::bad_alloc",
)


@dataclass(frozen=True)
class Failure:
    """Reason why one rank gave no answer."""

    rank: int
    where: str
    """Description of rank, role, method, process and host."""
    summary: str
    """Type and message of the error, or the way the process ended."""
    remote_traceback: str = ""
    error: BaseException | None = None
    """The error itself, if it can be pickled."""
    died: bool = False
    """True if the process is gone."""
    in_collective: bool = False
    """True if a sibling was late or gone or had failed, so that another rank's failure is the
    cause of this one."""
    out_of_memory: bool = False

    def to_error(self) -> RLTrainError:
        """Return the error to raise on the driver: the project's own errors unchanged, others as
        one of `errors.py`."""
        text = f"{self.where}: {self.summary}"
        if self.out_of_memory:
            error: RLTrainError = WorkerOutOfMemory(f"{text}\nout of memory; {MEMORY_ADVICE}")
        elif self.died:
            error = WorkerDied(
                f"{text}\nif the system ended it for want of memory (SIGKILL), {MEMORY_ADVICE}; "
                "a retry starts fresh workers from the last complete checkpoint"
            )
        elif isinstance(self.error, RLTrainError):
            error = self.error
            error.add_note(f"raised by {self.where}")
        else:
            error = WorkerError(f"{text}\n{self.remote_traceback}".rstrip())
        if self.remote_traceback and not isinstance(error, WorkerError):
            error.add_note(self.remote_traceback)
        return error


def failure_of(error: BaseException, rank: int, where: str) -> Failure:
    """Convert a caught error to a failure that can be sent to the driver."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    text = summary.lower()
    return Failure(
        rank,
        where,
        summary,
        "".join(traceback.format_exception(error)),
        error if _pickles(error) else None,
        in_collective=_is_distributed(error) or any(mark in text for mark in _COLLECTIVE_MARKS),
        out_of_memory=_is_out_of_memory(error, text),
    )


def cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure behind the others: a dead process first, then any error that is not about
    a sibling."""
    return min(
        failures, key=lambda failure: (not failure.died, failure.in_collective, failure.rank)
    )


def how_it_ended(error: Exception) -> str:
    """Return Ray's account of a dead actor, without its boilerplate."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    detail = next(
        (line for line in lines if "exit detail" in line.lower() or "cause" in line.lower()), ""
    )
    return f"the process ended: {detail or lines[0] if lines else type(error).__name__}"


def hung_error(
    waiting: Sequence[Failure], missing: Sequence[str], call: str, timeout_s: float
) -> WorkerHung:
    """Return the error of a call that some ranks never finished.

    Args: missing: description of each missing rank.
    """
    waited = "; ".join(failure.summary.splitlines()[0] for failure in waiting[:1])
    return WorkerHung(
        f"{call} hung: siblings waited {timeout_s:g} s (placement.collective_timeout_s) for "
        + "; ".join(missing)
        + (f"\nthe waiting ranks ended with: {waited}" if waited else "")
    )


def _is_distributed(error: BaseException) -> bool:
    import torch.distributed as dist

    return isinstance(error, dist.DistError | SiblingFailed)


def _is_out_of_memory(error: BaseException, text: str) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(mark in text for mark in _MEMORY_MARKS)


def _pickles(error: BaseException) -> bool:
    """Return True if an error can be pickled and rebuilt; many third-party ones pickle but cannot
    be rebuilt."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # an error's own reduce may raise anything
        return False
