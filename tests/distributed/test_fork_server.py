"""Workers that are forked: all of a cluster's come from one server, and none is lost without it,
nor with the cluster's only node.

In a process of its own: this one has a cluster already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_core.distributed import fork_server
from rl_core.distributed.fork_server import LONGEST_ADDRESS, forked_workers, setup_worker
from tests.processes import command_line

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")

DRIVER = """
import json
import os
import sys
import time

import psutil
import ray

from rl_core.distributed.cluster import early_cluster, ray_cluster
from tests.processes import command_line


class Worker:
    def __init__(self):
        self.imported = "torch" in sys.modules

    def about(self):
        return {"pid": os.getpid(), "parent": os.getppid(), "imported": self.imported}


def started():
    actor = ray.remote(Worker).options(num_cpus=1).remote()
    return actor, ray.get(actor.about.remote())


with early_cluster(1, "cpu"), ray_cluster(None, 1, "cpu"):
    said = []
    for _ in range(2):
        actor, about = started()
        server = psutil.Process(about["parent"])
        about["of"] = command_line(server)
        said.append(about)
        ray.kill(actor)
        psutil.wait_procs([psutil.Process(about["pid"])], timeout=10)
    server.kill()
    server.wait()
    said.append(started()[1])
    for process in psutil.Process().children(recursive=True):
        if "raylet/raylet" in " ".join(command_line(process)):
            process.kill()
    while any(node["Alive"] for node in ray.nodes()):
        time.sleep(0.1)
    with ray_cluster(None, 1, "cpu"):
        said.append(started()[1])
print(json.dumps(said))
"""


@pytest.mark.slow
def test_workers_come_from_one_server_without_it_from_python_and_after_a_loss_from_the_next():
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=240
    )
    assert not done.returncode, done.stderr
    first, second, ordinary, next_one = json.loads(done.stdout.splitlines()[-1])
    assert str(Path(fork_server.__file__).parent / "server.py") in first["of"]
    assert first["imported"] and second["imported"]
    assert second["parent"] == first["parent"], "the end of a worker ended its server"
    assert first["pid"] != second["pid"]
    assert ordinary["parent"] != first["parent"] and not ordinary["imported"]
    assert next_one["imported"], "the next cluster has a server of its own"


def test_a_temporary_folder_with_a_long_name_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with forked_workers() as python:
        address = python.split()[-1]
    assert len(address) <= LONGEST_ADDRESS and not Path(address).exists()


@pytest.mark.usefixtures("ray_cluster")
def test_ray_starts_workers_by_a_script_that_does_not_import_it():
    children = psutil.Process().children(recursive=True)
    commands = [" ".join(command_line(child)) for child in children]
    (raylet,) = [command for command in commands if "raylet/raylet" in command]
    assert f"--python_worker_command={sys.executable} {setup_worker.__file__} " in raylet
    says = f"import sys, {setup_worker.__name__}; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


CLIENT = f"{sys.executable} -I -S {setup_worker.CLIENT} '/tmp/a folder/socket'"


@pytest.mark.parametrize(
    ("context", "language", "is_forked"),
    [
        ({"py_executable": CLIENT, "env_vars": {}, "command_prefix": []}, "PYTHON", True),
        ({"py_executable": CLIENT, "env_vars": {"A": "1"}}, "PYTHON", False),
        ({"py_executable": CLIENT, "command_prefix": ["cd", "/tmp", "&&"]}, "PYTHON", False),
        ({"py_executable": CLIENT}, "JAVA", False),
        ({"py_executable": "/other/python"}, "PYTHON", False),
        ({}, "PYTHON", False),
    ],
    ids=["forked", "variables", "prefix", "Java", "another Python", "nothing asked"],
)
def test_a_worker_that_asks_for_more_than_a_fork_is_set_up_by_ray(
    monkeypatch: pytest.MonkeyPatch, context: dict[str, Any], language: str, is_forked: bool
):
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, command: became.append(command))
    arguments = [
        "-s",
        "default_worker.py",
        "--node-ip-address=127.0.0.1",
        f"--serialized-runtime-env-context={json.dumps(context)}",
        f"--language={language}",
    ]
    setup_worker.main(arguments)
    # The first call alone: in a process nothing comes after it.
    if is_forked:
        start = [sys.executable, "-I", "-S", setup_worker.CLIENT, "/tmp/a folder/socket"]
        assert became[0] == [*start, "-s", "default_worker.py", "--node-ip-address=127.0.0.1"]
    else:
        rays_own = setup_worker.rays_own()
        assert Path(rays_own).is_file()
        assert became[0] == [sys.executable, rays_own, *arguments]
