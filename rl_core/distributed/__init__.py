"""Placing work on devices: the only importer of ray."""

from rl_core.dispatch import Broadcast, Collect, Dispatch, Execute, distributed
from rl_core.distributed.device_pool import DevicePool, ray_cluster
from rl_core.distributed.placement import Remote, WorkerGroup, placement, remote
from rl_core.rank_info import RankInfo, TrainTopology

__all__ = [
    "Broadcast",
    "Collect",
    "DevicePool",
    "Dispatch",
    "Execute",
    "RankInfo",
    "Remote",
    "TrainTopology",
    "WorkerGroup",
    "distributed",
    "placement",
    "ray_cluster",
    "remote",
]
