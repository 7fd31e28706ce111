"""Placing work on devices: the only importer of ray. See README.md beside this file."""

from rl_core.quick_imports import quick_imports

# Workers begin here: torch and tensordict come with these.
with quick_imports():
    from rl_core.cluster import ray_cluster
    from rl_core.dispatch import Broadcast, Collect, Dispatch, Execute, distributed
    from rl_core.distributed.device_pool import DevicePool
    from rl_core.distributed.placement import Block, placement, remote
    from rl_core.distributed.refs import DataProtoRef
    from rl_core.distributed.remote import PendingCall, Remote
    from rl_core.rank_info import RankInfo, TrainTopology

__all__ = [
    "Block",
    "Broadcast",
    "Collect",
    "DataProtoRef",
    "DevicePool",
    "Dispatch",
    "Execute",
    "PendingCall",
    "RankInfo",
    "Remote",
    "TrainTopology",
    "distributed",
    "placement",
    "ray_cluster",
    "remote",
]
