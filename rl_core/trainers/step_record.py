"""The batches of one step, sampled and trained, by reference: nothing is fetched until read."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rl_core.data.prepare.items import Item
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.train.weights.order import Order


@dataclass(frozen=True)
class Portion:
    """Rows of a track that were sampled together."""

    batch: DataProto | DataProtoRef
    rows: tuple[int, ...] | None = None
    """Rows of the batch that are meant; None means all."""
    trained: bool = True
    """False for groups that dynamic sampling replaced, and for a track that does not learn."""
    log_probs: tuple[Tensor, ...] = ()
    """The trainer's log-probabilities of the replicas' shards, as in `TrainStepResult`."""

    @property
    def names(self) -> set[str]:
        """Names of the batch's columns."""
        return column_names(self.batch)

    def log_probs_like(self, values_BT: Tensor) -> Tensor:
        """Return the trainer's log-probabilities of the rows that are meant, [B, T]: NaN where no
        pass computed them.

        Args: values_BT: any column of that shape. A row of a shard may be split into adjacent
        portions of its actions.
        """
        num_rows, num_actions = values_BT.shape
        unknown_BT = torch.full((num_rows, num_actions), math.nan)
        fits = all(part.numel() % num_actions == 0 for part in self.log_probs)
        if not self.log_probs or not fits:
            return unknown_BT
        # Copies that fill up a shard are at the end of the last ones.
        joined_BT = torch.cat([part.reshape(-1, num_actions) for part in self.log_probs])
        if len(joined_BT) >= num_rows:
            return joined_BT[:num_rows]
        return unknown_BT

    def fetch(self, keys: Sequence[str]) -> DataProto:
        """Return the rows with those of the columns `keys` that the batch has."""
        wanted = [key for key in keys if key in self.names]
        if isinstance(self.batch, DataProtoRef):
            found = self.batch.fetch(wanted)
        else:
            tensors = [] if self.batch.batch is None else set(map(str, self.batch.batch.keys()))
            found = self.batch.select(
                [key for key in wanted if key in tensors],
                [key for key in wanted if key not in tensors],
            )
        if self.rows is None:
            return found
        return found[list(self.rows)]


@dataclass
class StepRecord:
    """One step: its prompts, and what was sampled for them."""

    step: int
    items: dict[str, Item] = field(default_factory=dict)
    """Prompts by uid, those of extra rollouts included."""
    tracks: dict[str, list[Portion]] = field(default_factory=dict)
    """Sampled rows by track; the first portion is what was trained on."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of each phase of the step."""
    order: Order | None = None
    """Order in which the engine took weights during the rollout, where they are renewed in
    flight."""
    started: float = field(default_factory=time.time)
    """Unix time at which the step began."""

    def add_prompts(self, prompts: DataProto, order: Order | None = None) -> None:
        """Note the prompts of a rollout of this step, and its order where there is one."""
        self.order = order or self.order
        self.items |= {item["uid"]: item for item in prompts.non_tensor_batch["item"]}

    def add_log_probs(self, track: str, parts: Sequence[Tensor]) -> None:
        """Note the trainer's log-probabilities of a track's trained rows. Args: parts: of the
        replicas' shards."""
        first, *others = self.tracks[track]
        self.tracks[track] = [replace(first, log_probs=tuple(parts)), *others]


def column_names(batch: DataProto | DataProtoRef) -> set[str]:
    """Return the names of a batch's columns."""
    if isinstance(batch, DataProtoRef):
        return batch.keys
    tensors = set() if batch.batch is None else set(map(str, batch.batch.keys()))
    return tensors | set(batch.non_tensor_batch)
