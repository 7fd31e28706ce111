"""A component that says where it is and that its world holds together."""

from __future__ import annotations

import importlib
import socket
import time

import torch
import torch.distributed as dist


class Summing:
    """Adds up a one of every rank."""

    def total(self) -> int:
        """Return the number of ranks, by a collective."""
        ones = torch.ones(1)
        dist.all_reduce(ones)
        return int(ones)

    def hold(self, seconds: float) -> float:
        """Work for a time, outside of any collective. Returns: that time."""
        time.sleep(seconds)
        return seconds

    def facts(self) -> tuple[str, int]:
        """Return the machine's name and the threads of this worker."""
        return socket.gethostname(), torch.get_num_threads()

    def imported(self, module: str) -> str:
        """Import a module here. Returns: what it says of itself."""
        return str(importlib.import_module(module).SAID)
