"""Who a worker is among its siblings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RankInfo:
    """Place of one worker process in its placement block."""

    rank: int
    world_size: int
    device_kind: str
    """`cpu` or `cuda`."""
    num_threads: int
    master_address: str = "127.0.0.1"
    master_port: int = 0

    @property
    def device(self) -> torch.device:
        """The device this worker computes on; Ray shows each worker its own GPUs alone, so it is always the first."""
        import torch

        return torch.device("cuda", 0) if self.device_kind == "cuda" else torch.device("cpu")

    @property
    def collective_backend(self) -> str:
        return "nccl" if self.device_kind == "cuda" else "gloo"
