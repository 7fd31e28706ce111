"""The process on one device, which holds the siblings of one placement block as plain objects."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from rl_core.distributed.failures import Failure, failure_of
from rl_core.distributed.output import label_output
from rl_core.distributed.refs import ShardRef, Stored, store
from rl_core.distributed.status import StatusServer
from rl_core.kernels import keep_freed_memory, spare_busy_cores, widen_products
from rl_core.ranks.meeting_store import bound_socket, listen_on_interface_of, open_store
from rl_core.ranks.rank_info import RankInfo
from rl_core.runtime.own_packages import search_users_folders_last

if TYPE_CHECKING:
    from collections.abc import Iterator

START_TIMEOUT_S = 300.0
"""Seconds that processes may take to start and find each other."""


@dataclass(frozen=True)
class Sibling:
    """Placeholder of a sibling in the arguments of a remote constructor, until the worker inserts
    the object."""

    name: str


@dataclass(frozen=True)
class Address:
    """Address of a worker."""

    host: str
    """IP address of its machine in the cluster; 127.0.0.1 in a cluster of this machine alone."""
    hostname: str
    pid: int
    started: float
    """`start_time` of its process; together with the id it is unique."""
    free_port: int
    status_port: int
    token: str


class DeviceWorker:
    """Body of the Ray actor. Builds siblings, resolves references between them, and calls their
    methods."""

    def __init__(self, info: RankInfo, collective_timeout_s: float) -> None:
        search_users_folders_last()
        self.info, self.collective_timeout_s = info, collective_timeout_s
        self.objects: dict[str, object] = {}
        import ray

        self.host = ray.util.get_node_ip_address()
        self.server = StatusServer(self.host)
        label_output(lambda: f"rank {self.info.rank} {self.server.method}".rstrip())

    def address(self) -> Address:
        """Return the address of this worker, with a port that is free for the process group."""
        import psutil

        from rl_core.runtime.process_record import start_time

        with bound_socket(self.host) as probe:
            port = probe.getsockname()[1]
        started = start_time(psutil.Process())
        return Address(
            self.host,
            socket.gethostname(),
            os.getpid(),
            started,
            port,
            self.server.port,
            self.server.token,
        )

    def join_group(self, address: str, port: int) -> Failure | None:
        """Set memory and threads, and join the process group of the block."""
        with self._reported("WorkerGroup.join") as report:
            if self.info.device_kind == "cpu":
                keep_freed_memory()
            import torch
            import torch.distributed as dist

            if self.info.device_kind == "cpu":
                widen_products()
            self.info = info = replace(self.info, master_address=address, master_port=port)
            torch.set_num_threads(info.num_threads)
            if info.device_kind == "cpu":
                spare_busy_cores(info.num_threads)
            if info.device_kind == "cuda":
                torch.cuda.set_device(0)
            timeout = timedelta(seconds=self.collective_timeout_s)
            # Subgroups (device meshes) do not inherit the world group's timeout but read these
            # defaults.
            for default in ("default_pg_timeout", "default_pg_nccl_timeout"):
                setattr(dist.distributed_c10d, default, timeout)
            # A slow start is no hung collective: ranks meet at the store first, with a patience of
            # their own.
            patience = timedelta(seconds=START_TIMEOUT_S)
            listen_on_interface_of(self.host)
            store = open_store(
                address, port, info.world_size, is_master=info.rank == 0, timeout=patience
            )
            dist.init_process_group(
                info.collective_backend,
                store=store,
                rank=info.rank,
                world_size=info.world_size,
                timeout=timeout,
            )
        return report.failure

    def build(
        self,
        name: str,
        factory: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Failure | None:
        """Construct a sibling; a class with `needs_rank_info` gets this worker's."""
        owner = factory if isinstance(factory, type) else getattr(factory, "__self__", None)
        with self._reported(
            f"{name}.{'__init__' if owner is factory else factory.__name__}"
        ) as report:
            named = {key: self._resolve(value) for key, value in kwargs.items()}
            if getattr(owner, "needs_rank_info", False):
                named["rank_info"] = self.info
            self.objects[name] = factory(*map(self._resolve, args), **named)
            # A sibling lives as long as its process: walking through it for garbage, a third of a
            # second, finds none.
            gc.freeze()
        return report.failure

    def call(
        self,
        name: str,
        method: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        wanted: bool,
        stored: bool,
    ) -> object:
        """Call a sibling's method.

        Args: wanted: True if the answer counts. stored: put it into the object store and answer
        with references.
        Returns: the answer, None if it is not wanted, or the Failure.
        """
        answer = None
        with self._reported(f"{name}.{method}") as report:
            args = tuple(map(_fetch, args))
            kwargs = {key: _fetch(value) for key, value in kwargs.items()}
            answer = getattr(self.objects[name], method)(*args, **kwargs)
            if not wanted:
                answer = None
            elif stored:
                answer = store(answer)
        return report.failure or answer

    @contextmanager
    def _reported(self, method: str) -> Iterator[_Report]:
        """Run the block as `method`; an error becomes the report's Failure."""
        report = _Report()
        self.server.begin(method)
        try:
            yield report
        except Exception as error:
            where = f"rank {self.info.rank} ({method}, pid {os.getpid()} on {socket.gethostname()})"
            report.failure = failure_of(error, self.info.rank, where)
        finally:
            self.server.end()

    def _resolve(self, value: object) -> object:
        if isinstance(value, Sibling):
            return self.objects[value.name]
        if type(value) is tuple or type(value) is list:
            return type(value)(map(self._resolve, value))
        if type(value) is dict:
            return {key: self._resolve(entry) for key, entry in value.items()}
        return value


@dataclass
class _Report:
    failure: Failure | None = None


def _fetch(value: object) -> object:
    if isinstance(value, ShardRef | Stored):
        return value.fetch()
    return value
