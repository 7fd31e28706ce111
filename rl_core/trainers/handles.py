"""Types of the handles of a trainer, as the driver calls them.

A worker's own signature says what one rank gets and gives: a shard. The driver passes whole batches
and is answered with a `DataProtoRef`, so its view has types of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.models.export.checksums import Checksum
from rl_core.rollout.episodes.unfinished import Unfinished
from rl_core.train.result import TrainStepResult
from rl_core.train.stacks.unified_stack import UnifiedStepResult
from rl_core.train.weights.buckets import WeightVersion
from rl_core.train.weights.offer import Offer

Batch: TypeAlias = DataProto | DataProtoRef
"""Rows on the driver, or rows that stayed on the ranks that made them."""


class NotedHandle(Protocol):
    """A model on the ranks that reports unusual computations."""

    def notes(self) -> list[str]:
        """Return a line for each."""
        ...


class ParkedHandle(Protocol):
    """A model on the ranks whose memory can be freed for a while."""

    def offload(self) -> list[int]:
        """Release the model's memory; return the released bytes of each rank."""
        ...

    def onload(self) -> object:
        """Restore what `offload` released."""
        ...


class BackendHandle(NotedHandle, ParkedHandle, Protocol):
    """A backend such as `FSDPBackend` on the ranks of its block."""

    def weight_version(self, *, evaluation: bool = False) -> WeightVersion:
        """Return the version of the weights for sampling or evaluation."""
        ...

    def save(self, folder: str) -> object:
        """Write the checkpoint."""
        ...

    def save_in_background(self, folder: str) -> object:
        """Begin to write the checkpoint, and go on."""
        ...

    def is_saved(self, *, wait: bool) -> list[bool]:
        """Return for each rank True if nothing is being written."""
        ...

    def load(self, folder: str) -> object:
        """Restore the checkpoint."""
        ...

    def export(self, folder: str) -> object:
        """Write an ordinary model folder."""
        ...

    def peak_memory(self) -> list[int]:
        """Return the peak bytes of each rank."""
        ...

    def apply_eval_ema(self) -> object:
        """Put the moving average in place of the weights."""
        ...

    def restore_from_eval(self) -> object:
        """Put the weights back."""
        ...


class EngineHandle(NotedHandle, Protocol):
    """A rollout engine; what follows the prompts differs between engines."""

    def rollout(self, prompts: DataProto, *options: object) -> DataProtoRef:
        """Sample the prompts for training."""
        ...

    def evaluate(self, prompts: DataProto, *options: object, **named: object) -> DataProtoRef:
        """Sample the prompts once for an evaluation."""
        ...

    def unfinished(self) -> list[list[Unfinished]]:
        """Return the groups that each rank's last rollout left for the next one."""
        ...

    def take(self, offer: Offer) -> object:
        """Load weights that were put down; only of engines with their own model."""
        ...

    def watch(self, board_of: Callable[[int], object]) -> object:
        """Take weights from a board, also while sampling; only of engines that can."""
        ...

    def sleep(self) -> object:
        """Free memory for training; only of engines that can."""
        ...


class PairEngineHandle(EngineHandle, Protocol):
    """The engine of given pairs of answers."""

    def reference(self, pairs: DataProto) -> DataProtoRef:
        """Return the reference model's log-probabilities of both answers."""
        ...


class Synced(Protocol):
    """Report of a weight sync."""

    @property
    def version(self) -> WeightVersion:
        """Version of the weights that the engine then holds."""
        ...


class SyncHandle(Protocol):
    """A weight sync between a backend and an engine."""

    def sync(self, *, evaluation: bool) -> Synced:
        """Send the weights of rollouts, or of evaluations, unless the engine holds them."""
        ...


class OwnSyncHandle(SyncHandle, Protocol):
    """A weight sync that can put weights down, and go on with another engine."""

    def offer(self, *, evaluation: bool) -> Offer:
        """Put down the weights of rollouts, or of evaluations, for the engine to take."""
        ...

    def kept_checksums(self) -> dict[str, Checksum]:
        """Return the checksums of the weights that an engine loads by itself."""
        ...

    def reconnect(self, rollout: EngineHandle) -> object:
        """Send to this engine from now on."""
        ...


class StackHandle(Protocol):
    """A stack that trains one track."""

    def train(self, shard: Batch) -> TrainStepResult:
        """Train on one rollout."""
        ...

    def measure(self, shard: Batch) -> DataProtoRef:
        """Return the log-probabilities that advantages need."""
        ...


class CriticStackHandle(Protocol):
    """A stack that trains a critic."""

    def train(self, shard: Batch) -> TrainStepResult:
        """Train on one rollout."""
        ...

    def values(self, shard: Batch) -> DataProtoRef:
        """Return the values before each action."""
        ...


class JointStackHandle(Protocol):
    """A stack that trains all tracks in one optimizer step."""

    def receive(self, shard: Batch, stage: str) -> object:
        """Keep a stage's rollout until `train`."""
        ...

    def train(self) -> UnifiedStepResult:
        """Train on what was received."""
        ...


class AlgorithmHandle(Protocol):
    """Copies of the driver's algorithm on the ranks."""

    def load_state_dict(self, state: Mapping[str, float]) -> object:
        """Take the driver's coefficients."""
        ...


class ScorersHandle(Protocol):
    """A reward service on the ranks."""

    def score(self, rollout: Batch) -> DataProtoRef:
        """Return the scores of every row, and the errors of those without."""
        ...
