"""The process on one device: it holds the siblings of one placement block as plain objects."""

from __future__ import annotations

import os
import socket
from typing import Any

from rl_core.rank_info import RankInfo


class Sibling:
    """Stands for a sibling in the arguments of a remote constructor, until the worker puts the object there."""

    def __init__(self, name: str) -> None:
        self.name = name


class DeviceWorker:
    """Body of the Ray actor. Builds siblings, resolves references between them, and calls their methods."""

    def __init__(self, rank: int, world_size: int, device_kind: str, num_threads: int) -> None:
        self.info = RankInfo(rank, world_size, device_kind, num_threads)
        self.objects: dict[str, Any] = {}

    def address(self) -> tuple[str, int, int]:
        """Address, a free port for the process group, and the process id."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        host = "127.0.0.1" if self.info.world_size == 1 else socket.gethostbyname(socket.gethostname())
        return host, port, os.getpid()

    def join_group(self, address: str, port: int) -> None:
        """Set threads and enter the process group of the block."""
        import torch
        import torch.distributed as dist

        info = self.info
        self.info = RankInfo(info.rank, info.world_size, info.device_kind, info.num_threads, address, port)
        torch.set_num_threads(info.num_threads)
        if info.device_kind == "cuda":
            torch.cuda.set_device(0)
        dist.init_process_group(
            info.collective_backend, f"tcp://{address}:{port}", rank=info.rank, world_size=info.world_size
        )

    def build(self, name: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Construct a sibling; a class with a `rank_info` parameter is given this worker's."""
        args = tuple(self._resolve(value) for value in args)
        kwargs = {key: self._resolve(value) for key, value in kwargs.items()}
        if getattr(cls, "needs_rank_info", False):
            kwargs["rank_info"] = self.info
        self.objects[name] = cls(*args, **kwargs)

    def call(self, name: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a sibling's method."""
        return getattr(self.objects[name], method)(*args, **kwargs)

    def _resolve(self, value: Any) -> Any:
        return self.objects[value.name] if isinstance(value, Sibling) else value
