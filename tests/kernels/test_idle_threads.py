"""Workers of a private cluster get threads that sleep while they wait, unless the user chose."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rl_core.kernels import PASSIVE, sleeping_threads

POLICY = "OMP_WAIT_POLICY"
DRIVER = """
import os, ray
from rl_core.distributed.cluster import ray_cluster
with ray_cluster(None, 1, "cpu"):
    print(ray.get(ray.remote(lambda: os.environ.get("OMP_WAIT_POLICY")).remote()))
print(os.environ.get("OMP_WAIT_POLICY"))
"""


def test_a_worker_of_a_private_cluster_waits_passively():
    environment = {name: value for name, value in os.environ.items() if name != POLICY}
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.split() == ["passive", "None"], ended.stderr


def test_the_users_own_choice_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(POLICY, "active")
    with sleeping_threads():
        assert os.environ[POLICY] == "active"
    assert os.environ[POLICY] == "active"
    monkeypatch.delenv(POLICY)
    with sleeping_threads():
        assert os.environ[POLICY] == PASSIVE[POLICY]
    assert POLICY not in os.environ
