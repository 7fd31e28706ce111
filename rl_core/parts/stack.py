"""Contract of a train stack: the sequence of loss, backward and step on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rl_core.ranks.dispatch import Collect, Dispatch, distributed

if TYPE_CHECKING:
    from rl_core.data_proto import DataProto


class Stack(Protocol):
    """Trains a policy on one rollout's shard.

    It is built with the backend, the algorithm and the options of its domain, so a class usually
    derives from the domain's own: `TrainStack`, `StepStack`, `NftStack`. Algorithms with a KL term
    in the reward also call `measure`, and the joint stack of the domain `unified` calls `open` and
    `accumulate` of `SegmentStack`.
    """

    @distributed(Dispatch.DP_SCATTER, Collect.REDUCE)
    def train(self, shard: DataProto) -> object:
        """Train on one rollout's shard. Returns: a `TrainStepResult`."""
        ...
