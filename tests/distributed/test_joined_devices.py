"""Workers that use several devices as one."""

from __future__ import annotations

from typing import Any

import pytest

from rl_core.distributed import DevicePool, placement, remote
from rl_core.errors import RecipeError
from tests.distributed.components import Counter


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_on_joined_devices_holds_the_cpus_and_threads_of_all():
    from ray.util.placement_group import placement_group_table

    pool = DevicePool(4, threads_per_device=1, joined=[2])
    with placement(pool) as block:
        probe = remote(Counter, 0)
        assert [pool.threads(number) for number in block.devices.numbers] == [2, 1, 1]
        assert len(probe.pid()) == 3
        tables: Any = placement_group_table()
        held = [one["bundles"] for one in tables.values() if one["state"] == "CREATED"]
        assert {0: {"CPU": 2.0}, 1: {"CPU": 1.0}, 2: {"CPU": 1.0}} in held
    block.close()
    with (
        pytest.raises(RecipeError, match="99 devices are used by one worker, and no node"),
        placement(DevicePool(99, joined=[99])),
    ):
        remote(Counter, 0)
