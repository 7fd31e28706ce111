"""Rows of a step dealt to the ranks that train by their tokens: as many groups each, of about as
many tokens.

A step of training ends with the slowest rank. Groups stay whole, so that siblings share their
prompt's pass, and every rank gets as many rows; the loss is that of all rows either way, so only
the order of its sums changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import torch

from rl_core.distributed import DataProtoRef
from rl_core.distributed.refs import Reordered
from rl_core.rollout.sample_ids import GROUP
from rl_core.train.result import TrainStepResult
from rl_core.trainers.handles import Batch, StackHandle


class DealingStack:
    """A stack whose rows are dealt by tokens. Args: num_replicas: ranks, or groups of them, that
    train on different rows."""

    def __init__(self, stack: StackHandle, num_replicas: int) -> None:
        self._stack, self._num_replicas = stack, num_replicas

    def train(self, shard: Batch) -> TrainStepResult:
        """Train on one rollout. Its rows are dealt; its log-probabilities are in the order of the
        rows again."""
        groups = group_spans(shard.non_tensor_batch[GROUP].tolist())
        tokens_B = shard.tensor("num_tokens")
        tokens = [int(tokens_B[first:end].sum()) for first, end in groups]
        if not can_be_dealt(groups, self._num_replicas):
            return self._stack.train(shard)
        blocks = [groups[number] for number in dealt(tokens, self._num_replicas)]
        rows = [row for first, end in blocks for row in range(first, end)]
        if isinstance(shard, DataProtoRef):
            result = self._stack.train(Reordered(shard, tuple(blocks)))  # type: ignore[arg-type]
        else:
            result = self._stack.train(shard[rows])
        return _in_order(result, rows)

    def measure(self, shard: Batch) -> DataProtoRef:
        """Return the log-probabilities that advantages need."""
        return self._stack.measure(shard)


def group_spans(group_ids_B: Sequence[str]) -> list[tuple[int, int]]:
    """Return first and end row of each run of rows of one group."""
    spans: list[tuple[int, int]] = []
    for row, group in enumerate(group_ids_B):
        if spans and group_ids_B[spans[-1][0]] == group:
            spans[-1] = spans[-1][0], row + 1
        else:
            spans.append((row, row + 1))
    return spans


def can_be_dealt(groups: Sequence[tuple[int, int]], num_replicas: int) -> bool:
    """Return True if every rank can get as many groups of as many rows."""
    sizes = {end - first for first, end in groups}
    return len(sizes) == 1 and len(groups) % num_replicas == 0


def dealt(tokens_G: Sequence[int], num_replicas: int) -> list[int]:
    """Return the numbers of the groups in the order in which equal parts of them go to the ranks.

    The largest group goes first, to the rank with the fewest tokens that has room; a rank has its
    groups in their old order. Nothing moves where that would not make the largest part smaller.
    """
    room = len(tokens_G) // num_replicas
    parts: list[list[int]] = [[] for _ in range(num_replicas)]
    # Tokens and number of each rank with room, the fewest tokens first.
    free = [(0, rank) for rank in range(num_replicas)]
    most = 0
    for group in sorted(range(len(tokens_G)), key=lambda group: (-tokens_G[group], group)):
        held, rank = heapq.heappop(free)
        parts[rank].append(group)
        most = max(most, held + tokens_G[group])
        if len(parts[rank]) < room:
            heapq.heappush(free, (held + tokens_G[group], rank))
    before = [sum(tokens_G[rank * room : (rank + 1) * room]) for rank in range(num_replicas)]
    if most >= max(before):
        return list(range(len(tokens_G)))
    return [group for part in parts for group in sorted(part)]


def _in_order(result: TrainStepResult, rows: Sequence[int]) -> TrainStepResult:
    """Return a result whose log-probabilities are in the order of the rows before they were
    dealt."""
    if not result.log_probs:
        return result
    width = sum(part.numel() for part in result.log_probs) // len(rows)
    joined_BT = torch.cat([part.reshape(-1, width) for part in result.log_probs])
    ordered_BT = torch.empty_like(joined_BT)
    ordered_BT[torch.tensor(rows)] = joined_BT
    return replace(result, log_probs=(ordered_BT,))
