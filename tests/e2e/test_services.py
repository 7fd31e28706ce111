"""`rl-train up`, `status`, `down` with real servers: twice up changes nothing, down leaves no process and no loss."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import REPOSITORY

pytestmark = pytest.mark.slow
LIMIT_S = 900


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    rl_train(tmp_path / "home", "down")


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
    assert {"prefect", "mlflow", "worker-rl-local"} <= set(records)
    api = f"{records['prefect']['url']}/api"
    assert httpx.get(f"{records['mlflow']['url']}/health").text == "OK"
    names = {found["name"] for found in httpx.post(f"{api}/deployments/filter", json={}).json()}
    assert {"text", "vision", "mpo"} <= names
    status = done(home, "status").splitlines()
    assert [line.split()[1] for line in status] == ["running"] * 3
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
    assert "work pool rl-local created" not in again, "the database was lost"
    api = f"{json.loads((home / 'services.json').read_text())['prefect']['url']}/api"
    assert {found["name"] for found in httpx.post(f"{api}/deployments/filter", json={}).json()} == names
