"""Runs of `rl-train` on simulated machines, and an S3 server among them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.machines import PORT, Machine

S3_PORT = 9000
BUCKET = "bucket"
RUN = ("-m", "flows.cli", "run", "smoke/text")
_MAKE_BUCKET = f"import boto3; boto3.client('s3').create_bucket(Bucket={BUCKET!r})"


def start_s3(machine: Machine) -> dict[str, str]:
    """Start an S3 server on a machine, with one bucket. Returns: the environment to reach it."""
    env = {
        "AWS_ENDPOINT_URL": f"http://{machine.address}:{S3_PORT}",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "something",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    where = ("-H", machine.address, "-p", str(S3_PORT))
    log = machine.folder / "s3.log"
    machine.start(sys.executable, "-m", "moto.server", *where, log=log)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if machine.run(sys.executable, "-c", _MAKE_BUCKET, env=env).returncode == 0:
            return env
    raise TimeoutError(log.read_text())


def settings(head: Machine, *more: str) -> list[str]:
    """Return the overrides of a run with two ranks on a cluster, which lie on two nodes of one CPU
    each."""
    address = f"placement.ray_address={head.address}:{PORT}"
    return ["placement.num_devices=2", address, *more]


def train(
    driver: Machine, overrides: Sequence[str], env: Mapping[str, str], timeout_s: float = 400.0
) -> subprocess.CompletedProcess[str]:
    """Run the smoke recipe on a machine, to its end."""
    return driver.run(sys.executable, *RUN, *overrides, env=env, timeout_s=timeout_s)


def start_training(
    driver: Machine, overrides: Sequence[str], env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Path]:
    """Start the smoke recipe on a machine. Returns: the process and the file of its output."""
    log = driver.folder / f"run-{len(driver.started)}.log"
    return driver.start(sys.executable, *RUN, *overrides, env=env, log=log), log
