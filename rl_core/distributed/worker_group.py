"""The worker processes of one world, in rank order: calls to them, and supervision of running
calls."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from rl_core.distributed.failures import Failure, cause, how_it_ended, hung_error
from rl_core.distributed.output import forward
from rl_core.distributed.status import Status, ask
from rl_core.distributed.worker import START_TIMEOUT_S, Address, DeviceWorker
from rl_core.errors import WorkerDied
from rl_core.ranks.rank_info import RankInfo, TrainTopology

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle, ActorProxy

    from rl_core.distributed.device_pool import ActorOptions

A = TypeVar("A")

GRACE_S = 5.0
"""Seconds to wait for the other ranks after one rank's collective failed, to find the cause."""
HEARTBEAT_S = 10.0
"""Seconds within which a busy rank must show activity during its call."""


class WorkerGroup:
    """One process per device, joined in one process group. Pickles, so that a worker may call
    another group."""

    def __init__(
        self,
        actors: Sequence[ActorProxy[DeviceWorker]],
        topology: TrainTopology,
        collective_timeout_s: float,
    ) -> None:
        self.actors, self.topology, self.collective_timeout_s = (
            list(actors),
            topology,
            collective_timeout_s,
        )
        self.num_siblings = 0
        self.addresses: list[Address] = []
        self._left_over: Sequence[ObjectRef[object]] = ()
        self._closed = False

    @classmethod
    def start(
        cls, infos: Sequence[RankInfo], options: Sequence[ActorOptions], timeout_s: float
    ) -> WorkerGroup:
        """Start a process per rank and join them in a process group.

        Args: options: options of each rank's Ray actor.
        """
        import ray

        actor_cls = ray.remote(DeviceWorker)
        actors = []
        for info, option in zip(infos, options, strict=True):
            actors.append(actor_cls.options(max_restarts=0, **option).remote(info, timeout_s))
        group = cls(actors, infos[0].topology, timeout_s)
        try:
            everyone = group.submit("address", {rank: () for rank in group.ranks})
            found = group.wait("WorkerGroup.address", everyone, START_TIMEOUT_S).values()
            group.addresses = [cast(Address, one) for one in found]
            head = group.addresses[0]
            joining = group.submit(
                "join_group", {rank: (head.host, head.free_port) for rank in group.ranks}
            )
            group.wait("WorkerGroup.join_group", joining, START_TIMEOUT_S)
        except BaseException:
            group.close()
            raise
        return group

    @property
    def world_size(self) -> int:
        return len(self.actors)

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.world_size)

    def pids(self) -> list[int]:
        """Return the process ids of the workers, in rank order."""
        return [address.pid for address in self.addresses]

    def submit(
        self, method: str, calls: Mapping[int, tuple[object, ...]], **kwargs: bool
    ) -> dict[ObjectRef[object], int]:
        """Start a worker method on some ranks. Returns: the rank of each future.

        Raises: WorkerDied when the group is closed, or a rank still waits in an earlier call that
        failed elsewhere.
        """
        if self._closed:
            raise WorkerDied(f"{method}: the workers were closed; build them anew")
        if self._left_over:
            calls_left = [one.future() for one in self._left_over]
            stuck = wait(calls_left, GRACE_S).not_done
            if stuck:
                raise WorkerDied(
                    f"{method}: {len(stuck)} rank(s) still wait in an earlier call that failed "
                    "on another rank; close the placement block and build the workers anew"
                )
            self._left_over = ()
        ranks: dict[ObjectRef[object], int] = {}
        for rank, args in calls.items():
            ranks[getattr(self.actors[rank], method).remote(*args, **kwargs)] = rank
        return ranks

    def wait(
        self, label: str, futures: Mapping[ObjectRef[A], int], timeout_s: float | None = None
    ) -> dict[int, A]:
        """Return the answer of each rank.

        Args: label: name of the call, as `Role.method`. timeout_s: replaces the collective timeout.
        Raises: WorkerDied within seconds of a process' end; WorkerHung when siblings wait for a
        rank longer than the collective timeout; WorkerOutOfMemory, WorkerError or the project's own
        error as the worker raised it.
        """
        watch = _Watch(self, label, dict(futures), timeout_s or self.collective_timeout_s)
        try:
            return watch.finish()
        except BaseException:
            self._left_over = [cast("ObjectRef[object]", one) for one in watch.pending]
            raise

    def describe(self, rank: int, label: str) -> str:
        """Describe a rank for messages."""
        address = self.addresses[rank] if self.addresses else None
        return f"rank {rank} ({label}" + (
            f", pid {address.pid} on {address.hostname})" if address else ")"
        )

    def status(self, rank: int) -> Status | None:
        """Return the status of a rank, busy or not; None if it does not answer."""
        address = self.addresses[rank]
        return ask(address.host, address.status_port, address.token)

    def close(self) -> None:
        """Stop the worker processes, including stopped and hung ones."""
        import ray

        self._closed = True
        for actor in self.actors:
            ray.kill(cast("ActorHandle[DeviceWorker]", actor))
        for address in self.addresses:
            _kill_here(address)


class _Watch(Generic[A]):
    """Supervision of one call on several ranks."""

    def __init__(
        self, group: WorkerGroup, label: str, pending: dict[ObjectRef[A], int], timeout_s: float
    ) -> None:
        self.group, self.label, self.pending, self.timeout_s = group, label, pending, timeout_s
        # Futures, for the reason that `answers` gives.
        self.refs: dict[Future[A], ObjectRef[A]] = {ref.future(): ref for ref in pending}
        self.world = sorted(pending.values())
        self.answers: dict[int, A] = {}
        self.failures: list[Failure] = []
        self.last_seen = dict.fromkeys(self.world, time.monotonic())
        self.next_heartbeat = time.monotonic() + HEARTBEAT_S
        self.first_end: float | None = None

    def finish(self) -> dict[int, A]:
        while self.pending:
            self._take(HEARTBEAT_S if self.first_end is None else min(HEARTBEAT_S, self.timeout_s))
            forward()
            if self.failures:
                self._raise()
            self._check_stragglers()
            self._check_heartbeats()
        return {rank: self.answers[rank] for rank in self.world}

    def _take(self, timeout_s: float) -> None:
        """Wait for one more rank, and record how it ended."""
        from ray.exceptions import RayActorError, RayTaskError

        for future in wait(self.refs, timeout_s, FIRST_COMPLETED).done:
            rank = self.pending.pop(self.refs.pop(future))
            self.first_end = self.first_end or time.monotonic()
            try:
                answer = future.result()
            except RayActorError as error:
                answer = Failure(
                    rank, self.group.describe(rank, self.label), how_it_ended(error), died=True
                )
            except RayTaskError as error:
                answer = Failure(
                    rank, self.group.describe(rank, self.label), str(error.cause), str(error)
                )
            if isinstance(answer, Failure):
                self.failures.append(answer)
            else:
                self.answers[rank] = answer

    def _raise(self) -> None:
        """Raise the failure behind the others; a failed collective alone only says that another
        rank is missing."""
        deadline = time.monotonic() + GRACE_S
        while (
            self.pending
            and cause(self.failures).in_collective
            and (left := deadline - time.monotonic()) > 0
        ):
            self._take(left)
        first = cause(self.failures)
        if first.in_collective and self.pending:
            raise self._hung(self.pending.values()) from first.to_error()
        error = first.to_error()
        # One of the project's own errors is raised as itself, and no error is its own cause.
        raise error from (None if error is first.error else first.error)

    def _check_stragglers(self) -> None:
        if (
            self.pending
            and self.first_end is not None
            and time.monotonic() - self.first_end > self.timeout_s
        ):
            raise self._hung(self.pending.values())

    def _check_heartbeats(self) -> None:
        if time.monotonic() < self.next_heartbeat or not self.group.addresses:
            return
        for rank in self.pending.values():
            if self.group.status(rank) is not None:
                self.last_seen[rank] = time.monotonic()
        self.next_heartbeat = time.monotonic() + HEARTBEAT_S
        now = time.monotonic()
        silent = [
            rank for rank in self.pending.values() if now - self.last_seen[rank] > self.timeout_s
        ]
        if silent:
            raise self._hung(silent)

    def _hung(self, ranks: Iterable[int]) -> Exception:
        missing = []
        for rank in sorted(ranks):
            missing.append(f"{self.group.describe(rank, self.label)}, {self._doing(rank)}")
        return hung_error(self.failures, missing, self.label, self.timeout_s)

    def _doing(self, rank: int) -> str:
        status = self.group.status(rank) if self.group.addresses else None
        if status is None:
            return "which does not answer at all (stopped, swapped out or cut off)"
        return f"which has been at {status.place} in a call of {status.seconds:.0f} s"


def _kill_here(address: Address) -> None:
    """SIGKILL a worker of this machine: a stopped process does not react to Ray's request to
    end."""
    from rl_core.runtime.process_record import find_process

    if address.hostname != socket.gethostname():
        return
    with suppress(ProcessLookupError):
        if find_process(address.pid, address.started):
            os.kill(address.pid, signal.SIGKILL)
