"""The nodes of the Ray cluster: how many devices they have, and whether a shortage is a machine's
fault."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_core.errors import NodeLost, RecipeError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

POLL_S = 1.0
WAIT_FOR_LOST_S = 300.0
_once_there: Counter[str] = Counter()
"""Most resources of each kind that this process has seen in the cluster."""
_seen: set[str] = set()
"""Ids of the nodes that this process has seen alive."""


@dataclass(frozen=True)
class Wanted:
    """Devices that a run asks the cluster for."""

    num_devices: int
    device_kind: str
    per_node: int | None = None
    """Consecutive devices that must lie on one node; None if any number may."""

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of one device."""
        return {"CPU": 1.0} | ({"GPU": 1.0} if self.device_kind == "cuda" else {})

    def short_of(self, have: int) -> str:
        """Say what is missing."""
        per = f", {self.per_node} on one node" if self.per_node else ""
        import ray

        held = ray.cluster_resources()
        return (
            f"placement needs {self.num_devices} x {self.bundle}{per}; the Ray cluster has room "
            f"for {have} ({held.get('CPU', 0):g} CPUs and {held.get('GPU', 0):g} GPUs in all)"
        )


def capacity(wanted: Wanted) -> int:
    """Return the number of devices of the wanted kind that the living nodes have, free or not; with
    `per_node`, those in whole groups."""
    total = 0
    for devices in _on_each_node(wanted):
        total += devices - devices % wanted.per_node if wanted.per_node else devices
    _once_there[wanted.device_kind] = max(_once_there[wanted.device_kind], total)
    return total


def largest_node(wanted: Wanted) -> int:
    """Return the most devices of the wanted kind that one living node has, free or not."""
    return max(_on_each_node(wanted), default=0)


def _on_each_node(wanted: Wanted) -> list[int]:
    """Return the number of devices of each living node."""
    import ray

    numbers = []
    for node in ray.nodes():
        if node["Alive"]:
            _seen.add(node["NodeID"])
            held: dict[str, float] = node["Resources"]
            numbers.append(int(min(held.get(kind, 0.0) for kind in wanted.bundle)))
    return numbers


def has_lost_nodes(wanted: Wanted) -> bool:
    """Return True if a shortage is a machine's fault: this run saw the devices in the cluster, or a
    node that died since. Ray lists those that died before, too."""
    import ray

    if _once_there[wanted.device_kind] >= wanted.num_devices:
        return True
    return any(not node["Alive"] and node["NodeID"] in _seen for node in ray.nodes())


def wait_for_devices(
    wanted: Wanted, wait_s: float | None, least: int, note: Callable[[str], None]
) -> int:
    """Return the number of devices that a run can have: all that it wants, or after a wait for
    replacements of lost nodes as many as there are.

    Args: wait_s: seconds to wait for nodes; None waits for lost ones alone. least: fewest devices
    that the run goes on with; `wanted.num_devices` if it needs all. note: is told of the wait.
    Raises: NodeLost when too few are left and nodes were lost; RecipeError when the cluster never
    had enough.
    """
    have = capacity(wanted)
    if have >= wanted.num_devices:
        return wanted.num_devices
    lost = has_lost_nodes(wanted)
    if wait_s is None:
        wait_s = WAIT_FOR_LOST_S if lost else 0.0
    if wait_s:
        note(
            f"{wanted.short_of(have)}; waiting up to {wait_s:g} s for more nodes "
            "(placement.wait_for_nodes_s)"
        )
        end = time.monotonic() + wait_s
        while have < wanted.num_devices and time.monotonic() < end:
            time.sleep(POLL_S)
            have = capacity(wanted)
    if have >= least:
        return min(have, wanted.num_devices)
    if lost:
        raise NodeLost(
            f"{wanted.short_of(have)} after {wait_s:g} s without the nodes that it lost; start "
            "others, or let the run go on with fewer devices (placement.min_devices)"
        )
    raise RecipeError(f"{wanted.short_of(have)}; lower placement.num_devices or add machines")


def node_id_here() -> str:
    """Return the id of the node that this process runs on."""
    import ray

    return ray.get_runtime_context().get_node_id()


def name_of(node_id: str) -> str:
    """Return the name of a node for messages."""
    import ray

    for node in ray.nodes():
        if node["NodeID"] == node_id:
            return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
    return f"node {node_id[:8]}"


def nodes_of(groups: Sequence[PlacementGroup]) -> list[str]:
    """Return the id of the node of every bundle, in order."""
    from ray.util.placement_group import placement_group_table

    found: list[str] = []
    for group in groups:
        # Any: Ray declares a dictionary of whatever.
        table: Any = placement_group_table(group)
        places = table["bundles_to_node_id"]
        found += [places[number] for number in sorted(places)]
    return found
