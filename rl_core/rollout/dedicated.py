"""Dedicated rollout engines: a separate model on its own devices, which receives the trainer's
weights.

An update is a sequence of buckets, by either transport, and `finish_sync`. Only then the engine
samples again: in the middle of an update, or with other weights than requested, it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_core.data_proto import DataProto
from rl_core.errors import StaleEngine, WeightMismatch
from rl_core.models.adapters.lora import inject_lora
from rl_core.models.adapters.merging import prepare_for_merged
from rl_core.models.bundle import ModelBundle, TextBundle
from rl_core.models.checks.comparison import difference
from rl_core.models.diffusion.bundle import DiffusionBundle
from rl_core.models.export.checksums import NUM_NAMED, Checksum, check_same, checksum
from rl_core.ranks.dispatch import Execute, distributed
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.diffusion.engine import DiffusionEngine
from rl_core.rollout.engine import RolloutEngine
from rl_core.rollout.in_flight import Board, InFlight
from rl_core.train.sharding import fsdp_wrap
from rl_core.train.sharding.meshes import Meshes
from rl_core.train.weights.buckets import Bucket, Pieces, WeightVersion, unpack
from rl_core.train.weights.offer import Offer
from rl_core.train.weights.process_group import Meeting, WireGroup
from schemas.recipe import DType, LoraConfig, ModelConfig
from schemas.sections.rollout import SyncMode

WIRE = "wire"
"""Name of the column with a bucket's numbers, [N]."""


class Replica:
    """A whole model on one rank, in its compute format, with the interface that an engine expects
    of a FSDPBackend.

    Args: bundle: a ModelBundle or a DiffusionBundle. lora: the trainer's adapters; with mode `full`
    they arrive merged.
    """

    def __init__(
        self,
        bundle: Any,
        lora: LoraConfig | None,
        mode: SyncMode,
        dtype: DType,
        rank_info: RankInfo,
    ) -> None:
        self.bundle, self.rank_info, self.device = bundle, rank_info, rank_info.device
        self.policy, self.meshes = self.bundle.policy, Meshes(rank_info)
        if lora is not None and mode is SyncMode.ADAPTER:
            inject_lora(self.policy, lora, seed=0)
        elif lora is not None:
            prepare_for_merged(self.policy, lora)
        fsdp_wrap.cast_parameters(self.policy, dtype)
        self.policy.to(self.home).requires_grad_(False).eval()
        self.parameters = dict(self.policy.named_parameters())
        self.version: WeightVersion | None = None
        """Version of the weights; None before the first update and during one."""
        self._known: set[str] = set()
        """Parameters that were compared with the trainer's since the start."""

    @property
    def home(self) -> torch.device:
        """Device on which the weights are kept."""
        return self.device

    def weight_version(self, *, evaluation: bool = False) -> WeightVersion:
        """Return the version of the weights, the same for every purpose. Raises: StaleEngine when
        they are not complete."""
        if self.version is None:
            raise StaleEngine(
                "the rollout engine holds no complete weights of the trainer's yet; "
                "WeightSync.sync first"
            )
        return self.version

    def load(self, bucket: Bucket) -> None:
        """Load a part of an update. Raises: WeightMismatch when it does not fit the model."""
        self.version = None
        unpack(bucket, self.parameters)

    def finish(
        self, version: WeightVersion, expected: dict[str, Checksum], dtype: torch.dtype
    ) -> None:
        """End an update. Raises: WeightMismatch when a tensor is not what was sent; the engine then
        stays unusable."""
        self.version = None
        found = {}
        for name in expected:
            if name in self.parameters:
                found[name] = checksum(self.parameters[name].to(dtype))
        check_same(expected, found, f"rollout engine rank {self.rank_info.rank}, weights {version}")
        self.check_known(expected)
        self.version = version

    def check_known(self, expected: Iterable[str]) -> None:
        """Check that every parameter was sent or compared by the trainer, now or before.

        Raises: WeightMismatch naming those that were not.
        """
        self._known.update(expected)
        left = [name for name in self.parameters if name not in self._known]
        if left:
            raise WeightMismatch(
                f"rollout engine rank {self.rank_info.rank}: {len(left)} of "
                f"{len(self.parameters)} tensors were neither sent by the trainer nor compared "
                f"with its own, first {', '.join(left[:NUM_NAMED])}"
            )

    @contextmanager
    def gathered(self) -> Iterator[Any]:
        """Yield the policy, for sampling."""
        with torch.no_grad():
            yield self.policy

    rollout_policy = gathered


class Receiver:
    """Receiving end of a weight sync, to put before an engine in a class's bases.

    Args: source: result of `rl_core.models.locate`. lora, mode: as of `Replica`. options: those of
    the engine. bundle_class: loads the model; unset takes the class's own.
    """

    needs_rank_info = True
    bundle_class: ClassVar[type[ModelBundle] | type[DiffusionBundle]]
    replica_class: ClassVar[type[Replica]] = Replica

    def __init__(
        self,
        source: str,
        model: ModelConfig,
        lora: LoraConfig | None,
        mode: SyncMode,
        dtype: DType,
        *options: object,
        rank_info: RankInfo,
        bundle_class: Callable[[str, ModelConfig], Any] | None = None,
    ) -> None:
        load = bundle_class or self.bundle_class
        self.replica = self.replica_class(load(source, model), lora, mode, dtype, rank_info)
        self._group: WireGroup | None = None
        self._groups: list[WireGroup] = []
        """Groups of the trainer's ranks, where each of them sends its part."""
        engine: Any = super()
        engine.__init__(self.replica, *options)

    def watch(self, board_of: Callable[[int], Board]) -> None:
        """Take weights from a board from now on, also while sampling. Args: board_of: returns the
        board as a rank sees it."""
        rank = self.replica.rank_info.rank
        self.in_flight = InFlight(board_of(rank), self.take, lambda: self.replica.version, rank)

    @distributed(execute=Execute.RANK_ZERO)
    def weight_version(self) -> WeightVersion | None:
        """Return the version of the weights; None if they are not complete."""
        return self.replica.version

    def join_wire(self, meeting: Meeting) -> None:
        """Join the group from which `receive_bucket` gets its numbers."""
        self._group = WireGroup.join(meeting, self.replica.rank_info.rank + 1, self.replica.device)

    def load_bucket(self, pieces: Pieces, values: DataProto) -> None:
        """Load a bucket from the object store: its numbers are the column `wire`."""
        self.replica.load(Bucket(pieces, values.tensor(WIRE)))

    def receive_bucket(self, pieces: Pieces, dtype: torch.dtype) -> None:
        """Receive a bucket by broadcast; the sender takes part at the same time."""
        assert self._group is not None
        values_N = torch.empty(sum(map(len, pieces)), dtype=dtype, device=self.replica.device)
        self._group.broadcast(values_N)
        self.replica.load(Bucket(pieces, values_N))

    def join_wires(self, meetings: Sequence[Meeting]) -> None:
        """Join the groups, one of each of the trainer's ranks, from which `receive_shards` gets its
        numbers."""
        rank, device = self.replica.rank_info.rank + 1, self.replica.device
        self._groups = [WireGroup.join(meeting, rank, device) for meeting in meetings]

    def receive_shards(self, sent: Sequence[tuple[int, Pieces]], dtype: torch.dtype) -> None:
        """Receive a bucket from each of some of the trainer's ranks at once, which take part at the
        same time. Args: sent: ranks, and what each sends."""
        under_way = []
        for sender, pieces in sent:
            values_N = torch.empty(sum(map(len, pieces)), dtype=dtype, device=self.replica.device)
            under_way.append((pieces, values_N, self._groups[sender].start(values_N)))
        for pieces, values_N, work in under_way:
            work.wait()
            self.replica.load(Bucket(pieces, values_N))

    def probe(self) -> Tensor | None:
        """Return the policy's results on its bundle's probe inputs, [N]."""
        return self.replica.bundle.said_by(self.replica.policy, self.replica.device)

    def finish_sync(
        self, version: WeightVersion, expected: dict[str, Checksum], dtype: torch.dtype
    ) -> None:
        """End an update: the weights are now `version`. Raises: WeightMismatch when a checksum
        differs."""
        self.replica.finish(version, expected, dtype)

    def take(self, offer: Offer) -> None:
        """Load weights that the trainer put down. Raises: WeightMismatch when they are not the
        trainer's afterwards."""
        for pieces, held in offer.buckets:
            self.load_bucket(pieces, held.fetch())
        self.finish_sync(offer.version, dict(offer.expected), offer.dtype)
        if offer.said is None or (found_N := self.probe()) is None:
            return
        said_N, bound = offer.said
        if found := difference(said_N, found_N, bound):
            raise WeightMismatch(
                f"rollout engine rank {self.replica.rank_info.rank}, weights {offer.version}: it "
                f"does not say what the trainer says: {found}"
            )


class DedicatedEngine(Receiver, RolloutEngine):
    """Rollout engine of language models with its own model."""

    bundle_class = ModelBundle


class DedicatedTextEngine(DedicatedEngine):
    """Rollout engine for text only, whatever media its model supports."""

    bundle_class = TextBundle


class DedicatedDiffusionEngine(Receiver, DiffusionEngine):
    """Rollout engine of diffusion models with its own model."""

    bundle_class = DiffusionBundle
