"""Process group between two worlds: one sender, and the ranks of an engine with their own world
group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl_core.ranks.meeting_store import open_store

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

SENDER = 0


@dataclass(frozen=True)
class Meeting:
    """Address at which the members of a wire group find each other."""

    host: str
    port: int
    world_size: int
    """Number of members: the sender and all receivers."""


class WireGroup:
    """Broadcasts from the sender: NCCL between GPUs, gloo otherwise. Waits as long as the worker's
    collectives do."""

    def __init__(self, meeting: Meeting, store: Store, rank: int, device: torch.device) -> None:
        timeout = dist.distributed_c10d.default_pg_timeout
        self.device = device
        # torch has no public way to a group across two worlds: `new_group` knows only the ranks of
        # its own. This can go when it takes a store.
        if device.type == "cuda":
            from torch.distributed import distributed_c10d

            nccl: Any = distributed_c10d.ProcessGroupNCCL
            options = nccl.Options()
            options._timeout = timeout
            self._group = nccl(store, rank, meeting.world_size, options)
        else:
            gloo: Any = dist.ProcessGroupGloo  # pyright: ignore[reportPrivateImportUsage]
            self._group = gloo(store, rank, meeting.world_size, timeout)

    @classmethod
    def join(cls, meeting: Meeting, rank: int, device: torch.device) -> WireGroup:
        """Join as receiver `rank` (1 or more); waits for the others."""
        timeout = dist.distributed_c10d.default_pg_timeout
        store = open_store(meeting.host, meeting.port, None, is_master=False, timeout=timeout)
        return cls(meeting, store, rank, device)

    def broadcast(self, values_N: Tensor) -> None:
        """Send `values_N`, or receive into it, in place."""
        self.start(values_N).wait()

    def start(self, values_N: Tensor) -> Any:
        """Begin to send `values_N`, or to receive into it. Returns: what `wait` ends it by."""
        return self._group.broadcast(values_N, SENDER)


class WireHost:
    """Sender's side of a wire group: the receivers get `meeting`, then everyone joins."""

    def __init__(self, host: str, num_receivers: int, device: torch.device) -> None:
        timeout = dist.distributed_c10d.default_pg_timeout
        self._store = open_store(host, 0, None, is_master=True, timeout=timeout)
        self._device = device
        self.meeting = Meeting(host, self._store.port, num_receivers + 1)

    def enter(self) -> WireGroup:
        """Wait for all receivers."""
        return WireGroup(self.meeting, self._store, SENDER, self._device)
