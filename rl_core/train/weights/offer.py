"""Weights of one version that lie ready for an engine, which takes them when it gets to it.

The trainer puts them down and goes on training; the engine takes them between two rollouts. A new
engine in the place of one that died takes the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from rl_core.data_proto import DataProto
from rl_core.models.export.checksums import Checksum
from rl_core.train.weights.buckets import Pieces, WeightVersion


class Held(Protocol):
    """A batch that lies somewhere else."""

    def fetch(self) -> DataProto:
        """Bring it here."""
        ...


@dataclass(frozen=True)
class Offer:
    """Weights of one version."""

    version: WeightVersion
    buckets: tuple[tuple[Pieces, Held], ...] = ()
    """Ranges of tensors with their numbers, in the order in which the engine loads them."""
    expected: Mapping[str, Checksum] = field(default_factory=dict)
    """Checksums of the tensors afterwards."""
    dtype: torch.dtype = torch.bfloat16
    """Format of the numbers in the buckets."""
    said: tuple[Tensor, float] | None = None
    """The trainer's results on the probe inputs [N], and the tolerance for the engine's; None where
    they are not compared."""
    num_bytes: int = 0
    """Bytes of the buckets."""
    weight_bytes: int = 0
    """Bytes of all the weights that they stand for."""
    is_whole: bool = True
    """False if the buckets hold only what changed since the last offer."""

    @property
    def is_held(self) -> bool:
        """True if the engine has these weights already."""
        return not self.expected

    def for_new_engine(self, kept: Mapping[str, Checksum]) -> Offer:
        """Return the offer for an engine that never had any. Args: kept: checksums of the weights
        that it loads by itself."""
        return replace(self, expected={**self.expected, **kept})
