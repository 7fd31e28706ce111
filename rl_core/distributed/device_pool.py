"""The devices of a run, on Ray placement groups, and the allocation of them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from rl_core.distributed.cluster import give_up_private, is_private
from rl_core.distributed.nodes.capacity import (
    Wanted,
    capacity,
    has_lost_nodes,
    largest_node,
    node_id_here,
    nodes_of,
)
from rl_core.distributed.nodes.model_copies import checked_nodes
from rl_core.errors import NodeLost, RecipeError

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

START_TIMEOUT_S = 300.0
"""Seconds to wait for others to free the requested devices; a cluster that has too few in total is
refused at once."""
OWN_TIMEOUT_S = 90.0
"""Seconds to wait for the devices of a private cluster, which this process has freed itself. A
raylet that lost count of them, as after a clock that was set back, never gives them out again."""
LOOK_S = 5.0
"""Seconds between looks at whether the cluster still has them."""


class ActorOptions(TypedDict):
    """Ray options of a worker process: its share of a device and where that is."""

    num_cpus: float
    num_gpus: float
    scheduling_strategy: PlacementGroupSchedulingStrategy


class Devices:
    """A set of devices; shares of it are taken and returned, and are disjoint while held."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self._free = list(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, fraction: float) -> Devices:
        """Take a share of all devices, the first free ones. Raises: RecipeError when it is not a
        whole number, or not free."""
        wanted = whole_devices(fraction, len(self.numbers))
        if wanted > len(self._free):
            raise RecipeError(
                f"placement(fraction={fraction:g}) asks for {wanted} of {len(self.numbers)} "
                f"devices, {len(self._free)} are free; blocks side by side may add up to 1 at "
                "most"
            )
        taken, self._free = self._free[:wanted], self._free[wanted:]
        return Devices(tuple(taken))

    def give_back(self, share: Devices) -> None:
        """Return a share that `take` gave."""
        self._free = sorted({*self._free, *share.numbers})


def whole_devices(fraction: float, num_devices: int) -> int:
    """Return `fraction` of the devices. Raises: RecipeError when that is not a whole number of at
    least 1."""
    exact = fraction * num_devices
    whole = round(exact)
    if whole < 1 or whole > num_devices or abs(exact - whole) > 1e-6:
        fits = ", ".join(f"{number}/{num_devices}" for number in range(1, num_devices + 1)[:8])
        raise RecipeError(
            f"placement(fraction={fraction:g}) of {num_devices} devices is {exact:g} devices, no "
            f"whole number of them; use one of {fits}"
        )
    return whole


class DevicePool:
    """A number of devices of one kind, a bundle each on Ray placement groups, created when the
    first worker starts.

    A device holds up to `workers_per_device` processes, each with an equal share of its CPUs and
    its GPU. If `devices_per_node` is given, that many consecutive devices are on one node, and
    collectives among them stay there. Several consecutive devices may be joined to one, which a
    worker uses as a whole: blocks and fractions then count it once.
    """

    def __init__(
        self,
        num_devices: int,
        devices_per_node: int | None = None,
        workers_per_device: int = 1,
        *,
        joined: Sequence[int] = (),
        device_kind: str = "cpu",
        threads_per_device: int = 0,
        collective_timeout_s: float = 600.0,
    ) -> None:
        """Create the pool; nothing is reserved yet.

        Args: joined: how many of the devices, from the first on, are joined to one each; the others
        stay apart. threads_per_device: CPU threads; 0 divides the cores of each device's node
        evenly. collective_timeout_s: seconds to wait for a rank before the call counts as hung.

        Raises: RecipeError when the numbers do not fit together.
        """
        if (
            min(num_devices, workers_per_device, devices_per_node or 1) < 1
            or collective_timeout_s <= 0
        ):
            raise RecipeError(
                f"num_devices={num_devices}, devices_per_node={devices_per_node}, "
                f"workers_per_device={workers_per_device}, "
                f"collective_timeout_s={collective_timeout_s:g}: all must be positive"
            )
        if devices_per_node and num_devices > devices_per_node and num_devices % devices_per_node:
            raise RecipeError(
                f"num_devices={num_devices} is no multiple of devices_per_node={devices_per_node}"
            )
        self.num_devices, self.device_kind = num_devices, device_kind
        self.devices_per_node, self.workers_per_device = devices_per_node, workers_per_device
        self.collective_timeout_s = collective_timeout_s
        self._sizes = [*joined, *[1] * (num_devices - sum(joined))]
        """Number of devices of the cluster that each device here is made of."""
        self._nodes = _divided(self._sizes, devices_per_node or num_devices)
        self._threads_per_device = threads_per_device
        self._num_threads: list[int] = []
        """CPU threads of a worker on each device, once it is known where the devices are."""
        self.devices = Devices(tuple(range(len(self._sizes))))
        self._num_workers = [0] * len(self._sizes)
        self._groups: list[PlacementGroup] = []

    def add_workers(self, devices: Devices) -> list[ActorOptions]:
        """Reserve resources for one more process on each of these devices.

        Returns: the options of each process's Ray actor. Raises: RecipeError when a device is full
        or the cluster is too small.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        full = [
            number
            for number in devices.numbers
            if self._num_workers[number] >= self.workers_per_device
        ]
        if full:
            raise RecipeError(
                f"device(s) {full} already hold workers_per_device={self.workers_per_device} "
                "process(es); raise it, or put the components into one block with "
                "shared_workers=True"
            )
        if not self._groups:
            self._groups = self._reserve()
            try:
                self._num_threads = self._looked_at(nodes_of(self._groups))
            except BaseException:
                self._free_groups()
                raise
        bundles = []
        for group, sizes in zip(self._groups, self._nodes, strict=True):
            bundles += [(group, number) for number in range(len(sizes))]
        options: list[ActorOptions] = []
        for number in devices.numbers:
            self._num_workers[number] += 1
            share = self._sizes[number] / self.workers_per_device
            strategy = PlacementGroupSchedulingStrategy(*bundles[number])
            gpus = share if self.device_kind == "cuda" else 0
            options.append({"num_cpus": share, "num_gpus": gpus, "scheduling_strategy": strategy})
        return options

    def remove_workers(self, devices: Devices) -> None:
        """Undo one `add_workers`; with the last process the placement groups are removed."""
        for number in devices.numbers:
            self._num_workers[number] -= 1
        if not any(self._num_workers):
            self._free_groups()

    def threads(self, number: int) -> int:
        """Return the CPU threads of a worker on a device that has been reserved."""
        return self._num_threads[number]

    def _free_groups(self) -> None:
        from ray.util.placement_group import remove_placement_group

        for group in self._groups:
            remove_placement_group(group)
        self._groups = []

    def _looked_at(self, nodes: list[str]) -> list[int]:
        """Have every node of the placement looked at; return the threads of a worker on each
        device. Raises: as `preflight.check` does."""
        cores = {node: os.cpu_count() or 1 for node in nodes}
        if any(node != node_id_here() for node in nodes):
            reports = checked_nodes(nodes)
            cores = {node: report.num_cores for node, report in reports.items()}
        beside: Counter[str] = Counter()
        for node, size in zip(nodes, self._sizes, strict=True):
            beside[node] += size
        threads = []
        for node, size in zip(nodes, self._sizes, strict=True):
            of_device = self._threads_per_device or max(1, cores[node] // beside[node])
            threads.append(size * max(1, of_device // self.workers_per_device))
        return threads

    def _reserve(self) -> list[PlacementGroup]:
        from ray.util.placement_group import placement_group, remove_placement_group

        wanted = Wanted(self.num_devices, self.device_kind, self.devices_per_node)
        have, together = capacity(wanted), max(self._sizes)
        if together > 1 and (most := largest_node(wanted)) < together:
            said = f"{together} devices are used by one worker, and no node has more than {most}"
            if has_lost_nodes(wanted):
                raise NodeLost(f"{said}: nodes were lost; a retry waits for others")
            raise RecipeError(
                f"{said}; lower rollout.vllm.tensor_parallel_size or pipeline_parallel_size"
            )
        strategy = "STRICT_PACK" if self.devices_per_node else "PACK"
        groups = []
        for sizes in self._nodes if have >= self.num_devices else []:
            bundles = []
            for size in sizes:
                bundles.append({kind: size * each for kind, each in wanted.bundle.items()})
            groups.append(placement_group(bundles, strategy=strategy))
        if groups and _are_placed(groups, wanted):
            return groups
        for group in groups:
            remove_placement_group(group)
        said = wanted.short_of(capacity(wanted))
        if is_private() and capacity(wanted) >= self.num_devices:
            give_up_private()
            raise NodeLost(
                f"{said}, of which {_free()} though nobody else uses it; a retry starts another "
                "cluster"
            )
        if capacity(wanted) < self.num_devices and has_lost_nodes(wanted):
            raise NodeLost(f"{said}: nodes of it were lost; a retry waits for others")
        raise RecipeError(
            f"{said}, of which {_free()}; lower placement.num_devices or add machines"
        )


def _divided(sizes: Sequence[int], per_node: int) -> list[list[int]]:
    """Divide devices of the given sizes among nodes. Raises: RecipeError when one would lie on
    two."""
    nodes: list[list[int]] = []
    for size in sizes:
        if not nodes or sum(nodes[-1]) == per_node:
            nodes.append([])
        nodes[-1].append(size)
        if sum(nodes[-1]) > per_node:
            raise RecipeError(
                f"{size} devices are used by one worker, and devices_per_node={per_node} puts them "
                f"on two nodes; use a multiple of {size}"
            )
    return nodes


def _are_placed(groups: list[PlacementGroup], wanted: Wanted) -> bool:
    """Wait until all groups have their devices; False after `START_TIMEOUT_S` (`OWN_TIMEOUT_S` in a
    private cluster), or as soon as the cluster has fewer: it takes Ray a while to notice that a
    machine is gone."""
    deadline = time.monotonic() + (OWN_TIMEOUT_S if is_private() else START_TIMEOUT_S)
    for group in groups:
        while not group.wait(LOOK_S):
            if time.monotonic() > deadline or capacity(wanted) < wanted.num_devices:
                return False
    return True


def _free() -> str:
    import ray

    free = ray.available_resources()
    return f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free"
