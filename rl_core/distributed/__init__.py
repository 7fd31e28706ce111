"""Placement of work on devices, in the only package that imports ray. See README.md in this folder.

Names are resolved on first use: a command that only needs a cluster (`rl_core.distributed.cluster`)
imports no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_core.distributed.blocks import Block, placement, remote, remote_everywhere
    from rl_core.distributed.cluster import ray_cluster
    from rl_core.distributed.device_pool import DevicePool
    from rl_core.distributed.handles import PendingCall, Remote, per_rank, submit
    from rl_core.distributed.refs import DataProtoRef
    from rl_core.ranks.dispatch import Broadcast, Collect, Dispatch, Execute, distributed
    from rl_core.ranks.rank_info import RankInfo, TrainTopology

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
    "per_rank",
    "placement",
    "ray_cluster",
    "remote",
    "remote_everywhere",
    "submit",
]

_HOMES = {
    **dict.fromkeys(
        ("Block", "placement", "remote", "remote_everywhere"), "rl_core.distributed.blocks"
    ),
    "ray_cluster": "rl_core.distributed.cluster",
    "DevicePool": "rl_core.distributed.device_pool",
    **dict.fromkeys(("PendingCall", "Remote", "per_rank", "submit"), "rl_core.distributed.handles"),
    "DataProtoRef": "rl_core.distributed.refs",
    **dict.fromkeys(
        ("Broadcast", "Collect", "Dispatch", "Execute", "distributed"), "rl_core.ranks.dispatch"
    ),
    **dict.fromkeys(("RankInfo", "TrainTopology"), "rl_core.ranks.rank_info"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
