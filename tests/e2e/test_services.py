"""`rl-train up`, `status`, `down` with real servers: twice up changes nothing, down leaves no process and no loss.

The stack of the first test serves the others: an announcement starts a run, and two runs of one pool queue.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import DEADLINE_S, REPOSITORY

pytestmark = pytest.mark.slow
LIMIT_S = 900


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("services") / "home"
    yield home
    rl_train(home, "down")


@pytest.fixture
def api(home: Path) -> str:
    """Of the running Prefect server."""
    done(home, "up")
    records = json.loads((home / "services.json").read_text())
    return f"{records['prefect']['url']}/api"


def rl_train(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"RL_TRAIN_HOME": str(home), "PREFECT_HOME": str(home / "prefect")}
    command = [sys.executable, "-m", "flows.cli", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def done(home: Path, *arguments: str) -> str:
    result = rl_train(home, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def processes(home: Path) -> list[psutil.Process]:
    """Every process that works in this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RL_TRAIN_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_up_twice_down_and_up_again(home: Path) -> None:
    done(home, "up")
    records: dict[str, Any] = json.loads((home / "services.json").read_text())
    assert {"prefect", "mlflow", "worker-rl-train", "worker-rl-light"} <= set(records)
    api = f"{records['prefect']['url']}/api"
    assert httpx.get(f"{records['mlflow']['url']}/health").text == "OK"
    names = {found["name"] for found in httpx.post(f"{api}/deployments/filter", json={}).json()}
    assert {"text", "vision", "mpo"} <= names
    status = done(home, "status").splitlines()
    assert [line.split()[1] for line in status] == ["running"] * 4
    assert f"export PREFECT_API_URL={api}" in done(home, "status", "--env")

    second = done(home, "up")
    assert "starting" not in second and "up to date" not in second
    assert json.loads((home / "services.json").read_text()) == records

    assert processes(home)
    done(home, "down")
    assert processes(home) == []
    stopped = rl_train(home, "status")
    assert (stopped.returncode, stopped.stdout.strip()) == (1, "nothing runs; rl-train up starts it")

    again = done(home, "up")
    assert "work pool rl-train created" not in again, "the database was lost"
    api = f"{json.loads((home / 'services.json').read_text())['prefect']['url']}/api"
    assert {found["name"] for found in httpx.post(f"{api}/deployments/filter", json={}).json()} == names


def found(api: str, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{api}/{path}", json=body)
    answer.raise_for_status()
    return answer.json()


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.5)
    return value


def test_announced_data_starts_the_deployment_that_waits_for_it(home: Path, api: str, tmp_path: Path) -> None:
    deployments = {
        one["name"]: one["id"] for one in found(api, "deployments/filter", {}) if "recipe" in one["parameters"]
    }

    def runs() -> Any:
        return found(api, "flow_runs/filter", {"deployments": {"id": {"any_": list(deployments.values())}}})

    assert runs() == []
    pool = f"{api}/work_pools/rl-train"
    httpx.patch(pool, json={"is_paused": True}).raise_for_status()  # what starts shall wait, not train
    try:
        said = done(home, "data", "announce", str(tmp_path))
        assert said == f"announced {tmp_path} to {api}\n"
        (run,) = wait_for(runs, "the run that the event starts")
        assert run["deployment_id"] == deployments["text"]
        assert run["parameters"] == {"recipe": "text", "retrain": "when-new"}
        assert run["created_by"]["type"] == "AUTOMATION"
        httpx.delete(f"{api}/flow_runs/{run['id']}").raise_for_status()
    finally:
        httpx.patch(pool, json={"is_paused": False}).raise_for_status()


def test_two_runs_of_the_training_pool_queue(home: Path, api: str) -> None:
    deployment = httpx.get(f"{api}/deployments/name/rl-train/text").json()["id"]
    assert httpx.get(f"{api}/work_pools/rl-train").json()["concurrency_limit"] == 1
    url = f"{api}/deployments/{deployment}/create_flow_run"
    # Without the limit both would start in the same second; each takes seconds to find that there is no such recipe.
    ids = [
        httpx.post(url, json={"parameters": {"recipe": f"none-{n}"}, "state": {"type": "SCHEDULED"}}).json()["id"]
        for n in (1, 2)
    ]

    def ended() -> Any:
        runs = found(api, "flow_runs/filter", {"flow_runs": {"id": {"any_": ids}}, "sort": "START_TIME_ASC"})
        return runs if all(run["state"]["type"] == "FAILED" for run in runs) else None

    first, second = wait_for(ended, "both runs")
    assert "unknown recipe" in first["state"]["message"]
    assert first["end_time"] <= second["start_time"]
