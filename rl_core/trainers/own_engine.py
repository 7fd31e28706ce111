"""An engine with its own copy of the model: it may sample ahead of training, and is started again
if it dies.

Ahead of training, weights and rollouts are one queue of calls, which the driver fills at fixed
places of a step and the engine works off in order:

    take 0 · rollout 1 · rollout 2 · rollout 3 · take 1 · rollout 4 · take 2 · rollout 5 · …

So which weights sample which rollout does not depend on how long anything takes. An engine in the
place of one that died or hung gets what is left of the queue, from the weights that were kept.

With weights in flight there are no takings in the queue: weights are pinned to a board as soon as
they are trained, and the engine takes them while it samples. Which it took where is noted, and
followed by a run that is resumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.distributed.handles import PendingCall, is_alive, submit
from rl_core.errors import WorkerDied, WorkerHung
from rl_core.train.weights.buckets import WeightVersion
from rl_core.train.weights.offer import Offer
from rl_core.train.weights.order import TAKEN, Order
from rl_core.trainers.handles import EngineHandle, OwnSyncHandle
from rl_core.trainers.metrics.staleness import VERSION
from rl_core.trainers.progress import ProgressEvent, announce
from rl_core.trainers.track import Engine, Track

T = TypeVar("T")


@dataclass
class Ahead:
    """A rollout that was started before its step."""

    prompts: DataProto
    step: int
    version: WeightVersion
    """Version of the weights that sample the rollout."""
    pending: PendingCall[DataProtoRef]
    taking: PendingCall[object] | None = None
    """The engine's taking of these weights, if it comes right before."""
    order: Order | None = None
    """Order in which weights were taken meanwhile, counted from the iteration's first, once the
    rollout is done; None where none are renewed in flight."""


class Board(Protocol):
    """A place where weights are pinned up for an engine that takes them while it samples."""

    def post(self, offer: Offer) -> None:
        """Pin up weights."""
        ...


@dataclass
class OwnEngine(Engine):
    """Engine with its own copy of the model, in processes of its own."""

    revive: Callable[[], EngineHandle] | None = None
    """Function that starts the engine again in new processes; None if it cannot be."""
    restarts: int = 0
    """Number of times that it may still be started again."""
    is_offered: bool = False
    """True if weights are put down for the engine, so that the trainer need not wait for it."""
    ahead: deque[Ahead] = field(default_factory=deque)
    """Rollouts that were started before their step, in order."""
    open_board: Callable[[EngineHandle], Board] | None = None
    """Function that opens a board for an engine; None if weights are not renewed in flight."""
    orders: dict[int, Order] = field(default_factory=dict)
    """By the number of steps before its own, the order in which an earlier process took weights
    during a rollout, counted from the iteration's first weights; it is followed."""
    num_restarted: int = 0
    """Number of times that it was started again since the last `restart_metrics`."""
    _offers: dict[WeightVersion, Offer] = field(default_factory=dict)
    _taking: PendingCall[object] | None = None
    _board: Board | None = None
    _first_version: int = 0
    """Number of the weights of the iteration's first rollout."""

    def __post_init__(self) -> None:
        """Open the board of the engine."""
        if self.open_board is not None:
            self._board = self.open_board(self.handle)

    def up_to_date(self, *, evaluation: bool) -> WeightVersion | None:
        """Send the engine the weights of rollouts, or of evaluations, unless it already holds them;
        as an offer, which it takes after what it is at, if rollouts run ahead."""
        if not self.is_offered:
            self._check_alive()
            return super().up_to_date(evaluation=evaluation)
        offer: Offer = self._sync.offer(evaluation=evaluation)
        self.sent_bytes = offer.num_bytes
        if not offer.is_held:
            self.weight_bytes = offer.weight_bytes
            self._offers = self._needed_offers() | {offer.version: offer}
            if self._board is not None:
                self._board.post(offer)
            else:
                self._taking = submit(self.handle.take, offer)
        return offer.version

    def rollout(self, prompts: DataProto, step: int, attempt: int = 0) -> DataProtoRef:
        """Sample the group of each prompt with the latest weights, by a new engine if need be."""

        def sample() -> DataProtoRef:
            version = self.up_to_date(evaluation=False)
            self._settle()
            if version is not None and not (attempt or self.ahead):
                self._first_version = version.number
            with self.room():
                rollout = self.handle.rollout(prompts, step, version, attempt)
            self.note_unfinished()
            return self._own(with_version(rollout, version))

        return self._until_done(sample)

    def evaluate(self, prompts: DataProto, *options: object, **named: object) -> DataProtoRef:
        """Sample each prompt once with the weights of evaluations, by a new engine if need be."""

        def sample() -> DataProtoRef:
            version = self.up_to_date(evaluation=True)
            self._settle()
            with self.room():
                return self.handle.evaluate(prompts, *options, version, **named)

        return self._until_done(sample)

    def start_rollouts(
        self, wanted: int, step: int, next_prompts: Callable[[int], DataProto]
    ) -> None:
        """Start rollouts with the latest weights until `wanted` are under way or done. Args: step:
        number of the first in the queue. next_prompts: prompts of a step."""
        version = self.up_to_date(evaluation=False)
        assert version is not None, "an engine beside training has weights of its own"
        while len(self.ahead) < wanted:
            its_step = step + len(self.ahead)
            prompts = next_prompts(its_step)
            pending = self._start(prompts, its_step, version)
            self.ahead.append(Ahead(prompts, its_step, version, pending, self._taking))
            self._taking = None

    def next_rollout(self) -> tuple[Ahead, DataProtoRef]:
        """Wait for the rollout that was started first, and take it out of the queue."""

        def wait() -> DataProtoRef:
            first = self.ahead[0]
            if first.taking is not None:
                first.taking.result()
            return self._own(with_version(first.pending.result(), first.version))

        rollout = self._until_done(wait)
        done = self.ahead.popleft()
        if self._board is not None:
            taken = Order.of_column(rollout.non_tensor_batch[TAKEN])
            done.order = taken.counted_from(self._first_version)
        return done, rollout

    def _start(
        self, prompts: DataProto, step: int, version: WeightVersion
    ) -> PendingCall[DataProtoRef]:
        """Start a rollout with these weights."""
        if self._board is None:
            return submit(self.handle.rollout, prompts, step, version)
        order = self.orders.get(step)
        if order is not None:
            order = order.counted_from(-self._first_version)
        return submit(self.handle.rollout, prompts, step, version, 0, order)

    def _needed_offers(self) -> dict[WeightVersion, Offer]:
        """Return the offers that a new engine would need for the rollouts under way."""
        needed = {one.version for one in self.ahead}
        if self._board is None or not needed:
            return {version: one for version, one in self._offers.items() if version in needed}
        oldest = min(version.number for version in needed)
        return {version: one for version, one in self._offers.items() if version.number >= oldest}

    def sync_metrics(self) -> dict[str, float]:
        """Return what the last sync sent, and how often the engine was started again."""
        restarted, self.num_restarted = self.num_restarted, 0
        again = {"engine_restarts": float(restarted)} if restarted else {}
        return super().sync_metrics() | again

    @property
    def is_busy(self) -> bool:
        """True if it samples ahead, and takes weights between two rollouts alone."""
        return bool(self.ahead) and self._board is None

    @property
    def _sync(self) -> OwnSyncHandle:
        return self.sync  # type: ignore[return-value]  # wired with the engine's own sync

    def _own(self, rollout: DataProtoRef) -> DataProtoRef:
        """Return the rows as this process's own, which stay if the engine dies."""
        return rollout.kept_here() if self.revive is not None and self.restarts else rollout

    def _until_done(self, call: Callable[[], T]) -> T:
        """Return the result of a call, made again by a new engine whenever one dies or hangs.

        Raises: WorkerDied, WorkerHung when it was started again often enough.
        """
        while True:
            try:
                return call()
            except (WorkerDied, WorkerHung) as error:
                self._start_again(error)

    def _settle(self) -> None:
        """Wait until the engine took the last offer."""
        taking, self._taking = self._taking, None
        if taking is not None:
            taking.result()

    def _check_alive(self) -> None:
        """Start an engine again that went away while it had nothing to do."""
        if self.revive is not None and self.restarts and not is_alive(self.handle):
            self._start_again(WorkerDied("the rollout engine does not answer"))

    def _start_again(self, error: WorkerDied | WorkerHung) -> None:
        """Replace the engine by a new one, with what it had not finished. Args: error: how it
        ended, which is raised if it cannot be replaced."""
        offers = [self._offers.get(one.version) for one in self.ahead]
        offers += self._needed_offers().values()
        are_whole = all(offer is not None and offer.is_whole for offer in offers)
        if self.revive is None or not self.restarts or not are_whole:
            raise error
        self.restarts -= 1
        self.num_restarted += 1
        # What Ray adds after its first sentence is advice of its own.
        said = str(error).splitlines()[0].split(". ")[0]
        announce(
            ProgressEvent(
                "note",
                text=f"the rollout engine is started again, and samples what it had not finished: "
                f"{said}",
            )
        )
        self.handle = self.revive()
        self._taking = None
        self._sync.reconnect(self.handle)
        if self.open_board is not None:
            self._board = self.open_board(self.handle)
        if not self.ahead:
            return
        if self._board is not None:
            self._pin_again(self._board)
            return
        kept, held = self._sync.kept_checksums(), None
        for one in self.ahead:
            one.taking = None
            if one.version != held:
                offer = self._offers[one.version]
                new = offer if held is not None else offer.for_new_engine(kept)
                one.taking, held = submit(self.handle.take, new), one.version
            one.pending = submit(self.handle.rollout, one.prompts, one.step, one.version)

    def _pin_again(self, board: Board) -> None:
        """Pin to a new engine's board what it needs, and start the rollouts anew."""
        first, *others = self._needed_offers().values()
        board.post(first.for_new_engine(self._sync.kept_checksums()))
        for offer in others:
            board.post(offer)
        for one in self.ahead:
            one.pending = self._start(one.prompts, one.step, one.version)


def follow(tracks: Iterable[Track], orders: Mapping[int, Order]) -> None:
    """Have engines with weights in flight take them as an earlier process of the run did. Args:
    orders: by step, from 1."""
    for track in tracks:
        if isinstance(track.sampler.engine, OwnEngine):
            track.sampler.engine.orders = {step - 1: order for step, order in orders.items()}


def with_version(rollout: DataProtoRef, version: WeightVersion | None) -> DataProtoRef:
    """Add to each row the number of the weights that sampled it, in place; nothing where the
    engine has none of its own."""
    if version is None:
        return rollout
    versions_B = torch.full((len(rollout),), version.number)
    return rollout.replace(DataProto.from_dict({VERSION: versions_B}))
