"""Weights sent by all ranks of a trainer at once, each its own part (`transport: shards`).

Each rank has a group with all of the engine's. In rounds, every rank with something left sends a
bucket; the first one tells the engine what comes from whom. Nobody gathers, and no rank's network
carries all of the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl_core.distributed.handles import PendingCall, Remote, per_rank, submit, world_size_of
from rl_core.models.export.checksums import Checksum, weighted_sum
from rl_core.rollout.dedicated import Receiver
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.weights.buckets import Bucket, Pieces, pack_ranges
from rl_core.train.weights.process_group import Meeting, WireGroup, WireHost
from rl_core.train.weights.shards import Part


@dataclass(frozen=True)
class Sent:
    """Amount and checksums of all that the ranks sent in one sync; equal on each of them."""

    num_buckets: int
    num_bytes: int
    expected: dict[str, Checksum]
    """Checksums of the whole tensors."""


class ShardSends:
    """Sends from each rank of the trainer. Collective, as `send` is."""

    def __init__(self, rollout: Remote[Receiver], backend: FSDPBackend) -> None:
        import ray

        self.rollout, self._leads = rollout, dist.get_rank() == 0
        host = WireHost(ray.util.get_node_ip_address(), world_size_of(rollout), backend.device)
        meetings: list[Meeting] = _told(host.meeting)
        joining = self._call(rollout.join_wires, meetings)
        self._group: WireGroup = host.enter()
        if joining is not None:
            joining.result()

    def send_from_first(self, bucket: Bucket) -> None:
        """Send what the first rank alone has. Call it there."""
        self._send(bucket, [(0, bucket.pieces)], bucket.values_N.dtype)

    def send(self, parts: Iterable[Part], dtype: torch.dtype, bucket_bytes: int) -> Sent:
        """Send all parts. Args: dtype: format in which they are sent."""
        sums: dict[str, tuple[tuple[int, ...], int]] = {}
        buckets = pack_ranges(self._cast(parts, dtype, sums), bucket_bytes)
        num_buckets = num_bytes = 0
        while True:
            bucket = next(buckets, None)
            sent: list[tuple[int, Pieces]] = []
            for rank, pieces in enumerate(_told(None if bucket is None else bucket.pieces)):
                if pieces is not None:
                    sent.append((rank, pieces))
            if not sent:
                return Sent(num_buckets, num_bytes, _whole(_told(sums)))
            self._send(bucket, sent, dtype)
            num_buckets += len(sent)
            num_bytes += sum(len(piece) for _, pieces in sent for piece in pieces) * dtype.itemsize

    def _send(
        self, bucket: Bucket | None, sent: list[tuple[int, Pieces]], dtype: torch.dtype
    ) -> None:
        receiving = self._call(self.rollout.receive_shards, sent, dtype)
        try:
            if bucket is not None:
                self._group.broadcast(bucket.values_N)
        except RuntimeError:
            # The receivers' own answers say which of them is gone or late, and why.
            if receiving is not None:
                receiving.result()
            raise
        if receiving is not None:
            receiving.result()

    def _call(self, method: Any, *args: object) -> PendingCall[list[None]] | None:
        """Call a method of all engine ranks, from the first rank alone."""
        return submit(per_rank(method), *args) if self._leads else None

    @staticmethod
    def _cast(
        parts: Iterable[Part],
        dtype: torch.dtype,
        sums: dict[str, tuple[tuple[int, ...], int]],
    ) -> Iterator[tuple[str, int, Tensor]]:
        for part in parts:
            numbers_N = part.numbers_N.to(dtype)
            sums[part.name] = part.shape, weighted_sum(numbers_N, part.first)
            yield part.name, part.first, numbers_N


def _told(mine: Any) -> list[Any]:
    """Return what every rank has, in rank order."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def _whole(sums: Iterable[dict[str, tuple[tuple[int, ...], int]]]) -> dict[str, Checksum]:
    """Return the checksums of whole tensors from those of the ranks' parts."""
    found: dict[str, Checksum] = {}
    for parts in sums:
        for name, (shape, value) in parts.items():
            before = found[name].value if name in found else 0
            found[name] = Checksum(shape, (before + value) % 2**64)
    return found
