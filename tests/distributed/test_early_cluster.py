"""A private cluster that starts beside its driver. In a process of its own: this one has a cluster
already."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import still_running

DRIVER = """
import json
import sys
import tempfile
from pathlib import Path

import ray

from rl_core.distributed.cluster import early_cluster, ray_cluster
from rl_core.distributed.worker_group import WorkerGroup
from rl_core.ranks.rank_info import RankInfo
from tests.processes import open_to_others


class Names:
    def __init__(self):
        self.before = [name for name in ("torch", "transformers.modeling_utils", "peft") if name in sys.modules]


with early_cluster(1, "cpu"):
    with ray_cluster(None, 1, "cpu"):
        actor = ray.remote(Names).options(num_cpus=1).remote()
        before = ray.get(actor.__ray_call__.remote(lambda self: self.before))
        folder = Path(tempfile.gettempdir()) / "ray" / ray.get_runtime_context().get_session_name()
    still_up = ray.is_initialized() and folder.is_dir()
    import psutil
    me = psutil.Process()
    below = [process.pid for process in me.children(recursive=True)]
    cores = ray.cluster_resources()["CPU"]
    group = WorkerGroup.start([RankInfo(0, 1, "cpu", 1)], [{"num_cpus": 0}], 120.0)
    everyone = [me, *me.children(recursive=True)]
    listening = sum(one.status == "LISTEN" for process in everyone for one in process.net_connections("tcp"))
    opened = open_to_others(everyone)
    answers = group.status(0) is not None
    group.close()
said = {"before": before, "cores": cores, "below": below}
said |= {"still_up": still_up, "after": ray.is_initialized()}
said |= {"left": folder.exists()}
said |= {"listening": listening, "opened": opened, "answers": answers}
print(json.dumps(said))
"""  # noqa: E501


@pytest.mark.slow
def test_workers_have_imported_what_they_need_and_everything_ends_with_the_block():
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=240, check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["before"] == ["torch", "transformers.modeling_utils", "peft"]
    assert said["cores"] == 1.0, "Ray starts a process for each, which imports all that"
    assert said["listening"] > 5 and said["opened"] == [], "other machines could reach these"
    assert said["answers"], "the worker's status"
    assert said["still_up"] is True
    assert said["after"] is False and said["left"] is False
    assert said["below"] and not still_running(said["below"])
    assert "SIGTERM" not in done.stderr


FAILS = """
import tempfile
from pathlib import Path

import ray

from rl_core.distributed.cluster import early_cluster, ray_cluster

with early_cluster(1, "cpu"), ray_cluster(None, 1, "cpu"):
    print(Path(tempfile.gettempdir()) / "ray" / ray.get_runtime_context().get_session_name())
    raise ValueError("what the block says")
"""


@pytest.mark.slow
def test_a_cluster_that_failed_leaves_its_logs():
    failing = [sys.executable, "-c", FAILS]
    done = subprocess.run(failing, capture_output=True, text=True, timeout=240, check=False)
    folder = Path(done.stdout.strip())
    assert (folder / "logs" / "gcs_server.out").is_file()
    shutil.rmtree(folder)
    assert "ValueError: what the block says" in done.stderr and "RuntimeError" not in done.stderr
