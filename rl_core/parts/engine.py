"""Contracts of a rollout engine: one that samples with the trained module, and one that has its own
copy of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from rl_core.models.export.checksums import Checksum
from rl_core.ranks.dispatch import Collect, Dispatch, Execute, distributed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rl_core.data_proto import DataProto
    from rl_core.train.weights.buckets import Pieces, WeightVersion
    from rl_core.train.weights.process_group import Meeting


class Samples(Protocol):
    """Samples from the policy of one rank.

    With `rollout.engine: in_process` it is built with the backend and the options of its domain, so
    a class usually derives from the domain's own: `RolloutEngine`, `DiffusionEngine`, `PairEngine`.
    """

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def rollout(self, prompts: DataProto, *options: object) -> DataProto | None:
        """Sample the group of each prompt; None on a rank that does not answer for its replica."""
        ...

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def evaluate(self, prompts: DataProto, *options: object) -> DataProto | None:
        """Sample one row per prompt, without randomness."""
        ...


class Receives(Samples, Protocol):
    """An engine with its own copy of the model, for `rollout.engine: dedicated` and `vllm`.

    `rl_core.rollout.dedicated.Receiver` has everything but the sampling; a class usually derives
    from `DedicatedTextEngine`, `DedicatedEngine`, `DedicatedDiffusionEngine` or `VllmEngine`.
    """

    @distributed(execute=Execute.RANK_ZERO)
    def weight_version(self) -> WeightVersion | None:
        """Return the version of the weights; None if they are not complete."""
        ...

    def join_wire(self, meeting: Meeting) -> None:
        """Join the group from which `receive_bucket` gets its numbers."""
        ...

    def load_bucket(self, pieces: Pieces, values: DataProto) -> None:
        """Load a bucket from the object store."""
        ...

    def receive_bucket(self, pieces: Pieces, dtype: torch.dtype) -> None:
        """Receive a bucket by broadcast."""
        ...

    def probe(self) -> Tensor | None:
        """Return the policy's results on the probe inputs; None for an engine that cannot."""
        ...

    def finish_sync(
        self, version: WeightVersion, expected: Mapping[str, Checksum], dtype: torch.dtype
    ) -> None:
        """End an update. Raises: WeightMismatch when a checksum differs."""
        ...
