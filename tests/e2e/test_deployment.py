"""The documented commands: server, work pool, deploy, worker, `prefect deployment run`, cancel."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from rl_core.services.catalogue import WORK_POOLS
from tests.e2e.conftest import REPOSITORY, alive, cmdline

pytestmark = pytest.mark.slow
DEADLINE_S = 150


@dataclass
class Services:
    """A Prefect server and a worker, ended by their own handles."""

    folder: Path
    port: int
    models: dict[str, str]
    """Environment variables of the smoke recipes -> models in place of the embedded ones."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return (
            os.environ
            | self.models
            | {
                "PREFECT_HOME": str(self.folder / "prefect"),
                "PREFECT_API_URL": f"http://127.0.0.1:{self.port}/api",
                "PREFECT_WORKER_QUERY_SECONDS": "1",
                "RL_TRAIN_HOME": str(self.folder / "home"),
            }
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "prefect", *arguments]
        with (self.folder / f"{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        self.processes.append(process)
        return self.processes[-1]

    def prefect(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def api(self, path: str, body: dict[str, Any] | None = None) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/{path}"
        answer = httpx.get(url) if body is None else httpx.post(url, json=body)
        answer.raise_for_status()
        return answer.json()

    def close(self) -> None:
        for process in reversed(self.processes):
            below = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(15)
            for child in below:
                if child.is_running():
                    child.kill()


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model_dir: Path,
    tiny_vlm_dir: Path,
    tiny_sd3_dir: Path,
    tiny_unified_dir: Path,
) -> Iterator[Services]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    models = {
        "SMOKE_MODEL": str(tiny_model_dir),
        "SMOKE_VISION_MODEL": str(tiny_vlm_dir),
        "SMOKE_DIFFUSION_MODEL": str(tiny_sd3_dir),
        "SMOKE_UNIFIED_MODEL": str(tiny_unified_dir),
    }
    running = Services(tmp_path_factory.mktemp("services"), port, models)
    try:
        running.start("server", "start", "--host", "127.0.0.1", "--port", str(port))
        wait_until(lambda: reachable(port), "the Prefect server")
        for pool in WORK_POOLS:
            running.prefect("work-pool", "create", pool.name, "--type", "process", "--overwrite")
        running.prefect("deploy", "--all")
        running.start("worker", "start", "--pool", "rl-train")
        yield running
    finally:
        running.close()


def reachable(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/health").status_code == 200
    except httpx.HTTPError:
        return False


def wait_until(condition: Any, what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.2)


SHOWN = {
    "validation", "cache", "progress", "reward-curve", "samples", "evaluation", "comparison", "mlflow-run", "model"
}  # fmt: skip
"""Artifacts of every run."""
PICTURES = {"sample-pictures"}
ALSO_SHOWN: dict[str, set[str]] = {
    "text": set(),
    "vision": PICTURES,
    "mpo": set(),
    "diffusion": PICTURES,
    "pe": PICTURES,
    "unified": PICTURES,
}
"""Deployment -> artifacts of its domain."""


@pytest.mark.parametrize("name", ALSO_SHOWN)
def test_a_deployment_run_completes_and_shows_its_artifacts(services: Services, name: str) -> None:
    services.prefect("deployment", "run", f"rl-train/{name}", "-p", f"recipe=smoke/{name}", "--watch")
    (run,) = services.api("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    assert (run["name"], run["state"]["type"]) == (f"rl-train smoke/{name}", "COMPLETED")
    tasks = services.api("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert {"train-iteration 1/2", "train-iteration 2/2", "evaluate baseline", "evaluate final"} <= {
        task["name"] for task in tasks
    }
    artifacts = services.api("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    assert SHOWN | ALSO_SHOWN[name] <= {artifact["key"] for artifact in artifacts}


def test_cancelling_a_run_leaves_no_ray_process(services: Services, tiny_recipe: Path) -> None:
    overrides = json.dumps(["training.num_iterations=500", "seed=1"])
    services.prefect(
        "deployment", "run", "rl-train/text", "-p", f"recipe={tiny_recipe}", "-p", f"overrides={overrides}"
    )
    worker = psutil.Process(services.processes[-1].pid)

    def ray_processes() -> list[psutil.Process]:
        return [child for child in worker.children(recursive=True) if "ray" in " ".join(cmdline(child))]

    def training() -> bool:
        (run,) = services.api("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 1})
        tasks = services.api("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
        return any(task["name"].startswith("train-iteration 2/") for task in tasks)

    wait_until(training, "training to begin")
    started = ray_processes()
    assert started
    (run,) = services.api("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 1})
    services.prefect("flow-run", "cancel", run["id"])
    wait_until(lambda: services.api(f"flow_runs/{run['id']}")["state"]["type"] == "CANCELLED", "the cancellation")
    assert not alive(started)
