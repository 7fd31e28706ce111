"""Blocks of real worker processes, shared where a test leaves them whole."""

from collections.abc import Iterator

import pytest

from rl_core.distributed import Block, DevicePool, Remote, TrainTopology, placement, remote
from tests.distributed.components import Counter, Probe


@pytest.fixture(scope="module")
def pool(ray_cluster: None) -> DevicePool:
    """Four devices with room for two processes each."""
    return DevicePool(4, workers_per_device=2, threads_per_device=2)


@pytest.fixture(scope="module")
def pair(pool: DevicePool) -> Iterator[tuple[Block, Remote, Remote]]:
    """Two data-parallel ranks with a Probe and its Counter."""
    with placement(pool, fraction=0.5) as block:
        counter = remote(Counter, 10)
        probe = remote(Probe, counter, others={"counters": [counter]})
    yield block, probe, counter
    block.close()


@pytest.fixture(scope="module")
def quad(ray_cluster: None) -> Iterator[Remote]:
    """Two replicas of two tensor-parallel ranks each, with a Probe."""
    pool = DevicePool(4, threads_per_device=1)
    with placement(pool, topology=TrainTopology(dp_size=2, tp_size=2)) as block:
        probe = remote(Probe, remote(Counter, 0))
    yield probe
    block.close()
