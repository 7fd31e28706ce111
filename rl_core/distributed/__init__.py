"""Placing work on devices: the only importer of ray."""

from rl_core.dispatch import Dispatch, dispatch
from rl_core.distributed.device_pool import DevicePool, ray_cluster
from rl_core.distributed.placement import Remote, WorkerGroup, placement, remote
from rl_core.rank_info import RankInfo

__all__ = [
    "DevicePool",
    "Dispatch",
    "RankInfo",
    "Remote",
    "WorkerGroup",
    "dispatch",
    "placement",
    "ray_cluster",
    "remote",
]
