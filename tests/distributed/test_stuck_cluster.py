"""A private cluster whose devices never become free is a machine's fault, and is replaced. In a
process of its own: this one has a cluster already."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

DRIVER = """
import json

import ray
from ray.util.placement_group import placement_group

from rl_core.distributed import device_pool
from rl_core.distributed.cluster import early_cluster, ray_cluster
from rl_core.distributed.device_pool import DevicePool
from rl_core.errors import NodeLost

device_pool.OWN_TIMEOUT_S = device_pool.LOOK_S = 0.5


def devices():
    pool = DevicePool(1)
    pool.add_workers(pool.devices)


said = []
with early_cluster(1, "cpu"):
    with ray_cluster(None, 1, "cpu"):
        # Stands for a raylet that lost count of what it gave out.
        ray.get(placement_group([{"CPU": 1}]).ready())
        try:
            devices()
        except NodeLost as error:
            said.append(str(error))
        first = ray.nodes()[0]["NodeID"]
    with ray_cluster(None, 1, "cpu"):
        devices()
        said.append(ray.nodes()[0]["NodeID"] != first)
    with ray_cluster(None, 1, "cpu"):
        second = ray.nodes()[0]["NodeID"]
said.append(ray.is_initialized())
print(json.dumps(said))
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_cluster_that_frees_nothing_is_replaced_by_another():
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=240, check=False
    )
    assert not done.returncode, done.stderr
    refused, is_another, still_up = json.loads(done.stdout.splitlines()[-1])
    assert "of which 0 CPUs and 0 GPUs are free though nobody else uses it" in refused
    assert is_another is True
    assert still_up is False
