"""Whole runs of `rl-train` on machines that share nothing but an S3 server; `make test-cluster`.

Each takes a minute or more, so the suite leaves them out.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.machines import Machine, Network, can_make_machines, network, start_ray
from tests.cluster.runs import BUCKET, settings, start_s3, start_training, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("RL_TRAIN_TEST_CLUSTER"), reason="`make test-cluster` runs these"
    ),
    pytest.mark.skipif(not can_make_machines(), reason="needs root and network namespaces"),
]
STORAGE = f"placement.storage=s3://{BUCKET}/runs"
TWELVE = [f"{step}.0" for step in range(1, 13)]
_LIST = f"""
import boto3
for page in boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket={BUCKET!r}):
    for one in page.get("Contents", []):
        print(one["Key"])
"""
_LOSSES = """
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("runs/*/steps/*.jsonl")):
    for line in path.read_text().splitlines():
        step = json.loads(line)
        print(step["step"], step.get("grad_norm"), step.get("reward_mean"))
"""


@dataclass
class Cluster:
    """Machines a and b, a node of one CPU each, and an S3 server on a."""

    network: Network
    env: dict[str, str]

    def objects(self) -> list[str]:
        a = self.network.machines["a"]
        return a.run(sys.executable, "-c", _LIST, env=self.env).stdout.splitlines()

    def steps(self, machine: str) -> list[str]:
        """Return the numbers of every step, as the machine's home has them."""
        there = self.network.machines[machine]
        home = self.env["RL_TRAIN_HOME"]
        return there.run(sys.executable, "-c", _LOSSES, home, env=self.env).stdout.splitlines()


@pytest.fixture
def cluster(tmp_path: Path, tiny_model_dir: Path) -> Iterator[Cluster]:
    with network(tmp_path, home=tmp_path / "home") as made:
        a, b = made.add("a"), made.add("b")
        env = start_s3(a) | {"RL_TRAIN_HOME": str(tmp_path / "home")}
        env["SMOKE_MODEL"] = str(tiny_model_dir)
        start_ray(a, env=env)
        start_ray(b, a, env=env)
        yield Cluster(made, env)


def test_nodes_that_share_nothing_train_and_a_third_machine_reads_the_run(cluster: Cluster):
    a = cluster.network.machines["a"]
    refused = train(a, settings(a), cluster.env)
    assert refused.returncode != 0 and "give placement.storage" in refused.stdout + refused.stderr
    shutil.rmtree(a.folder / "home" / "runs")
    done = train(a, settings(a, STORAGE), cluster.env)
    assert done.returncode == 0, done.stdout + done.stderr
    keys = cluster.objects()
    complete = [key for key in keys if key.endswith("/.complete")]
    assert complete and not list((a.folder / "home").glob("runs/*/checkpoints/iteration-*"))
    ranks = {re.search(r"rank-(\d)", key)[1] for key in keys if "/rank-" in key}  # type: ignore[index]
    assert ranks == {"0", "1"}, "each rank wrote its own"
    # The home of a machine that never saw the run.
    before = cluster.steps("a")
    for path in (a.folder / "home").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = train(a, settings(a, STORAGE), cluster.env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert cluster.steps("a") == before, "nothing was trained again"


def test_a_lost_node_is_replaced_and_the_end_is_the_same(cluster: Cluster):
    a, b = cluster.network.machines["a"], cluster.network.machines["b"]
    long = ("training.num_iterations=6", STORAGE)
    process, log = start_training(
        a, settings(a, *long, "placement.wait_for_nodes_s=240"), cluster.env
    )
    _until_an_iteration_is_complete(a, process)
    b.kill()
    start_ray(cluster.network.add("c"), a, env=cluster.env)
    assert process.wait(timeout=400) == 0, log.read_text()
    assert [line.split()[0] for line in cluster.steps("a")] == [
        f"{step}.0" for step in range(1, 13)
    ]


def test_a_run_goes_on_with_fewer_ranks(cluster: Cluster):
    a, b = cluster.network.machines["a"], cluster.network.machines["b"]
    more = ("training.num_iterations=6", STORAGE, "placement.min_devices=1")
    process, log = start_training(
        a, settings(a, *more, "placement.wait_for_nodes_s=2"), cluster.env
    )
    _until_an_iteration_is_complete(a, process)
    b.kill()
    assert process.wait(timeout=400) == 0, log.read_text()
    assert [line.split()[0] for line in cluster.steps("a")] == [
        f"{step}.0" for step in range(1, 13)
    ]


def _numbers(steps: list[str]) -> list[str]:
    return [step.split()[0] for step in steps]


def _until_an_iteration_is_complete(
    driver: Machine, run: subprocess.Popen[bytes], timeout_s: float = 300.0
) -> None:
    """Wait for the first receipt of an iteration, which the driver writes at home once its
    checkpoint is in the store."""
    end = time.monotonic() + timeout_s
    while not list((driver.folder / "home").glob("runs/*/receipts/iteration-0001.json")):
        assert run.poll() is None, "the run ended before"
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.2)
