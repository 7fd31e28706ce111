"""Weight sync from the trainer to a dedicated engine: gathered, cast, sent in buckets, and compared
by checksum.

    with placement(pool, fraction=1 / 2):
        rollout = remote(DedicatedEngine, ...)
    with placement(pool, fraction=1 / 2):
        backend = remote(FSDPBackend, ...)
        sync = remote(WeightSync, backend=backend, rollout=rollout)
    sync.sync()

All training ranks gather; the first one sends and calls the engine, each of whose ranks holds the
whole model. With `transport: shards` each sends what it holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from rl_core.data_proto import DataProto
from rl_core.distributed.handles import PendingCall, Remote, per_rank, submit, world_size_of
from rl_core.distributed.refs import put
from rl_core.distributed.shard_sends import ShardSends
from rl_core.errors import WeightMismatch
from rl_core.models.checks.comparison import difference
from rl_core.models.export.checksums import Checksum, checksum
from rl_core.ranks.dispatch import Collect, distributed
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.dedicated import WIRE, Receiver
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.sharding.fsdp_wrap import DTYPES
from rl_core.train.weights.buckets import (
    Bucket,
    Named,
    SentWeights,
    WeightVersion,
    kept_weights,
    pack,
    sent_weights,
)
from rl_core.train.weights.offer import Offer
from rl_core.train.weights.process_group import WireHost
from rl_core.train.weights.shards import other_weights, own_parts
from schemas.sections.rollout import SyncConfig, SyncContent, SyncTransport

BUCKETS_UNDER_WAY = 2
"""Number of buckets in the object store at once: one is gathered while the other is loaded."""

NUM_COMPARED = 2
"""Number of syncs after which the results of both sides are compared on the same inputs."""


@dataclass(frozen=True)
class SyncReport:
    """Result of one sync."""

    version: WeightVersion
    """Version of the weights that the engine now holds."""
    num_buckets: int
    """Number of buckets; 0 if the engine had the weights already."""
    num_bytes: int
    """Bytes sent, counted once."""
    weight_bytes: int
    """Bytes of all the weights that the engine is sent, in the format in which they are sent."""
    seconds: float


class WeightSync:
    """Bridge between a FSDPBackend, its sibling, and a DedicatedEngine in another placement
    block."""

    needs_rank_info = True

    def __init__(
        self,
        backend: FSDPBackend,
        rollout: Remote[Receiver],
        config: SyncConfig | None = None,
        *,
        rank_info: RankInfo,
    ) -> None:
        config = config or SyncConfig()
        self.backend, self.rollout, self.config = backend, rollout, config
        self.mode = config.mode_for(has_adapters=backend.lora_cfg is not None)
        self.dtype = DTYPES[config.dtype]
        self._sends = rank_info.rank == 0
        self._transport: Transport | None = None
        self._shards: ShardSends | None = None
        self._weight_bytes = 0
        self._synced: WeightVersion | None = None
        """Version that the engine holds, on the rank that sends."""
        self._sent = SentWeights() if config.content is SyncContent.CHANGES else None
        self._kept: dict[str, Checksum] | None = None
        self._num_compared = 0
        """Number of syncs after which trainer and engine were compared."""

    @distributed(collect=Collect.RANK_ZERO)
    def sync(self, *, evaluation: bool = False) -> SyncReport:
        """Bring the engine up to date; send nothing if it is. Collective.

        The first sync also compares the weights that the engine loaded by itself (the frozen base
        of adapters). After the first and the second, whose adapters are no longer zero, both sides
        score the same inputs.
        Args: evaluation: send the weights of greedy evaluation, if they differ from those of
        rollouts (moving averages).
        Raises: WeightMismatch when the engine's weights are not the trainer's afterwards.
        """
        start = time.perf_counter()
        version = self.backend.weight_version(evaluation=evaluation)
        held, num_compared = self._held()
        if held == version:
            return SyncReport(version, 0, 0, 0, time.perf_counter() - start)
        expected = self._begin(held)
        if self.config.transport is SyncTransport.SHARDS:
            num_buckets, num_bytes = self._send_shards(version, expected)
        else:
            num_buckets, num_bytes = self._send(self._weights(version, expected))
        # Before anything on the sending rank alone may fail: a rank that is gone would be waited
        # for.
        asked = self._asked(version) if num_compared < NUM_COMPARED else None
        if self._sends:
            self.rollout.finish_sync(version, expected, self.dtype)
            if asked is not None:
                self._compare(version, *asked)
            self._synced = version
        return SyncReport(
            version, num_buckets, num_bytes, self._weight_bytes, time.perf_counter() - start
        )

    @distributed(collect=Collect.RANK_ZERO)
    def offer(self, *, evaluation: bool = False) -> Offer:
        """Put the weights into the object store, for the engine to take after what it is at: the
        trainer does not wait for it. Collective.

        Args: evaluation: as of `sync`. Returns: an offer without weights if the engine has them, or
        will have, once it took what was offered before.
        """
        version = self.backend.weight_version(evaluation=evaluation)
        held, num_compared = self._held()
        if held == version:
            return Offer(version)
        expected = self._begin(held)
        buckets, num_bytes = [], 0
        for bucket in self._buckets(self._weights(version, expected)):
            values = DataProto.from_dict({WIRE: bucket.values_N.cpu()})
            buckets.append((bucket.pieces, put(values)))
            num_bytes += bucket.values_N.nbytes
        said = self._asked(version) if num_compared < NUM_COMPARED else None
        self._synced, self._num_compared = version, num_compared + (said is not None)
        return Offer(
            version,
            tuple(buckets),
            expected,
            self.dtype,
            said,
            num_bytes=num_bytes,
            weight_bytes=self._weight_bytes,
            is_whole=self._sent is None,
        )

    @distributed(collect=Collect.RANK_ZERO)
    def kept_checksums(self) -> dict[str, Checksum]:
        """Return the checksums of the weights that the engine loads by itself. Collective."""
        return self._kept_checksums()

    def reconnect(self, rollout: Remote[Receiver]) -> None:
        """Send to another engine from now on, which has no weights yet."""
        self.rollout, self._transport, self._synced = rollout, None, None
        self._shards = None

    def _begin(self, held: WeightVersion | None) -> dict[str, Checksum]:
        """Begin a sync. Args: held: version that the engine holds. Returns: the checksums so far,
        those of what the engine loaded by itself."""
        expected = {} if held is not None else self._kept_checksums()
        if held is None and self._sent is not None:
            self._sent.forget()
        self._synced = None
        self._weight_bytes = 0
        return expected

    def _weights(self, version: WeightVersion, expected: dict[str, Checksum]) -> Iterator[Named]:
        """Return the weights to send. Args: expected: gets their checksums as they are read."""
        weights = sent_weights(self.backend, self.mode, self._coarsest, averaged=version.averaged)
        return self._on_wire(weights, expected)

    def _held(self) -> tuple[WeightVersion | None, int]:
        """Return the version that the engine holds, and the number of comparisons, from the one
        rank that knows how the last sync ended."""
        held = [(self._synced, self._num_compared)]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def _asked(self, version: WeightVersion) -> tuple[Tensor, float]:
        """Return the trainer's results on the probe inputs, and the allowed difference of the
        engine's. Collective."""
        return self.backend.probe(self._coarsest, averaged=version.averaged)

    @property
    def _coarsest(self) -> torch.dtype:
        """The coarser format of the two in which weights are sent and computed with."""
        computed = DTYPES[self.backend.fsdp_cfg.param_dtype]
        return max(self.dtype, computed, key=lambda one: torch.finfo(one).eps)

    def _compare(self, version: WeightVersion, said_N: Tensor, bound: float) -> None:
        """Compare the engine's results on the probe inputs with the trainer's.

        Raises: WeightMismatch when they differ.
        """
        for rank, found_N in enumerate(per_rank(self.rollout.probe)()):
            if found_N is not None and (found := difference(said_N, found_N, bound)):
                raise WeightMismatch(
                    f"rollout engine rank {rank}, weights {version}: it does not say what the "
                    f"trainer says: {found}"
                )
        self._num_compared += 1

    def _kept_checksums(self) -> dict[str, Checksum]:
        """Return the checksums of frozen weights, computed once."""
        if self._kept is None:
            kept: dict[str, Checksum] = {}
            for _ in self._on_wire(kept_weights(self.backend, self.mode), kept):
                pass
            self._kept = kept
        return dict(self._kept)

    def _on_wire(self, weights: Iterable[Named], sums: dict[str, Checksum]) -> Iterator[Named]:
        """Yield weights in the wire's format, recording their checksums; gathered but dropped on
        ranks that do not send."""
        for name, weight in weights:
            if self._sends:
                cast = weight.to(self.dtype)
                self._weight_bytes += cast.nbytes
                sums[name] = checksum(cast)
                yield name, cast

    def _send(self, weights: Iterator[Named]) -> tuple[int, int]:
        """Send the weights. Returns: the number of buckets and of bytes."""
        num_buckets = num_bytes = 0
        for bucket in self._buckets(weights):
            if self._transport is None:
                self._transport = _open(self.config.transport, self.rollout, self.backend)
            self._transport.send(bucket)
            num_buckets, num_bytes = num_buckets + 1, num_bytes + bucket.values_N.nbytes
        if self._transport is not None:
            self._transport.flush()
        return num_buckets, num_bytes

    def _send_shards(
        self, version: WeightVersion, expected: dict[str, Checksum]
    ) -> tuple[int, int]:
        """Send the weights from all ranks. Returns: the number of buckets and of bytes. Args:
        expected: gets the checksums."""
        if self._shards is None:
            self._shards = ShardSends(self.rollout, self.backend)
        given = self.backend, self.mode
        others = other_weights(*given, self._coarsest, averaged=version.averaged)
        num_buckets = num_bytes = 0
        for bucket in pack(self._on_wire(others, expected), self.config.bucket_bytes):
            self._shards.send_from_first(bucket)
            num_buckets, num_bytes = num_buckets + 1, num_bytes + bucket.values_N.nbytes
        parts = own_parts(*given, averaged=version.averaged)
        sent = self._shards.send(parts, self.dtype, self.config.bucket_bytes)
        expected |= sent.expected
        self._weight_bytes += sent.num_bytes
        return num_buckets + sent.num_buckets, num_bytes + sent.num_bytes

    def _buckets(self, weights: Iterator[Named]) -> Iterator[Bucket]:
        if self._sent is None:
            return pack(weights, self.config.bucket_bytes)
        return self._sent.changed(weights, self.config.bucket_bytes)


class Transport(Protocol):
    """A way to send buckets."""

    def send(self, bucket: Bucket) -> None:
        """Send one bucket; it may still be in transit afterwards."""
        ...

    def flush(self) -> None:
        """Wait until all buckets have arrived."""
        ...


class ObjectStore:
    """Transport through Ray's object store: a bucket is put once, and each of the engine's machines
    fetches it once."""

    def __init__(self, rollout: Remote[Receiver]) -> None:
        self.rollout = rollout
        self._pending: list[PendingCall[list[None]]] = []

    def send(self, bucket: Bucket) -> None:
        batch = DataProto.from_dict({WIRE: bucket.values_N.cpu()})
        self._pending.append(submit(per_rank(self.rollout.load_bucket), bucket.pieces, batch))
        if len(self._pending) == BUCKETS_UNDER_WAY:
            self._pending.pop(0).result()

    def flush(self) -> None:
        while self._pending:
            self._pending.pop(0).result()


class Broadcasts:
    """Transport by collectives from this rank to all of the engine's, in a separate group."""

    def __init__(self, rollout: Remote[Receiver], backend: FSDPBackend) -> None:
        import ray

        self.rollout = rollout
        host = WireHost(ray.util.get_node_ip_address(), world_size_of(rollout), backend.device)
        joining = submit(per_rank(rollout.join_wire), host.meeting)
        self._group = host.enter()
        joining.result()

    def send(self, bucket: Bucket) -> None:
        receiving = submit(
            per_rank(self.rollout.receive_bucket), bucket.pieces, bucket.values_N.dtype
        )
        try:
            self._group.broadcast(bucket.values_N)
        except RuntimeError:
            # A broken group says only that a receiver is gone or late; the receivers' own answers
            # say which, and why.
            receiving.result()
            raise
        receiving.result()

    def flush(self) -> None:
        """Do nothing: each bucket has arrived when `send` returns."""


def _open(transport: SyncTransport, rollout: Remote[Receiver], backend: FSDPBackend) -> Transport:
    if transport is SyncTransport.OBJECT_STORE:
        return ObjectStore(rollout)
    return Broadcasts(rollout, backend)
