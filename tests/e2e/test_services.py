"""`rl-train up`, `status`, `down` with real servers: twice up changes nothing, down leaves no
process and no loss.

The stack of the first test serves the others: an announcement starts a run, and two runs of one
pool queue.
"""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest
from mlflow import MlflowClient

from rl_core.runtime.home_keys import prefect_password
from tasks.prefect_ui.champion_events import EVENT as CHAMPION
from tests.command import answer, rl_train
from tests.e2e.prefect_api import PrefectApi, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("services") / "home"
    yield home
    rl_train(home, "down", **of(home))


@pytest.fixture
def api(home: Path) -> PrefectApi:
    """Of the running Prefect server."""
    done(home, "up")
    return prefect_api(home)


def prefect_api(home: Path) -> PrefectApi:
    """Of the Prefect server that this home's records name."""
    url = json.loads((home / "services.json").read_text())["prefect"]["url"]
    return PrefectApi(f"{url}/api", prefect_password(home))


def deployments(api: PrefectApi) -> set[tuple[str, str]]:
    """Name and id of all of them; a name is one flow's own."""
    return {(found["name"], found["id"]) for found in api.post("deployments/filter", {})}


def of(home: Path) -> dict[str, str]:
    """Prefect's own folder, which would otherwise be that of the other tests, and workers that look
    often."""
    return {"PREFECT_HOME": str(home / "prefect"), "PREFECT_WORKER_QUERY_SECONDS": "1"}


def done(home: Path, *arguments: str) -> str:
    return answer(home, *arguments, **of(home))


def processes(home: Path) -> list[psutil.Process]:
    """Every process that works in this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("RL_TRAIN_HOME") == str(home)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_up_twice_down_and_up_again(home: Path) -> None:
    done(home, "up")
    records: dict[str, Any] = json.loads((home / "services.json").read_text())
    assert {"prefect", "mlflow", "worker-rl-train", "worker-rl-light"} <= set(records)
    api = prefect_api(home)
    assert httpx.get(f"{records['mlflow']['url']}/health").text == "OK"
    deployed = deployments(api)
    assert {"text", "vision", "mpo"} <= {name for name, _ in deployed}
    _, *status = done(home, "status").splitlines()
    assert [line.split("\t")[1] for line in status] == ["running"] * 4
    assert f"export PREFECT_API_URL={api.url}" in done(home, "status", "--env")
    refused = httpx.post(f"{api.url}/deployments/filter", json={})
    assert refused.status_code == httpx.codes.UNAUTHORIZED, "the home's key is asked for"
    address = done(home, "open", "--show").strip()
    assert address == f"{records['prefect']['url']}/rl-train-login#{prefect_password(home)}"
    assert "rl-train" in httpx.get(address).text

    second = done(home, "up")
    assert "starting" not in second and "up to date" not in second
    assert json.loads((home / "services.json").read_text()) == records

    assert processes(home)
    done(home, "down")
    assert processes(home) == []
    stopped = rl_train(home, "status", **of(home))
    assert (stopped.returncode, stopped.stdout.strip()) == (
        1,
        "nothing runs; rl-train up starts it",
    )

    again = done(home, "up")
    assert "work pool rl-train created" not in again, "the database was lost"
    assert deployments(prefect_api(home)) == deployed


def test_announced_data_starts_the_deployment_that_waits_for_it(
    home: Path, api: PrefectApi, tmp_path: Path
) -> None:
    def runs() -> Any:
        return api.post("flow_runs/filter", {"flows": {"name": {"any_": ["rl-train"]}}})

    assert runs() == []
    api.patch("work_pools/rl-train", {"is_paused": True})  # what starts shall wait, not train
    try:
        said = done(home, "data", "announce", str(tmp_path))
        assert said == f"announced {tmp_path} to {api.url}\n"
        (run,) = wait_until(runs, "the run that the event starts")
        assert run["deployment_id"] == api.get("deployments/name/rl-train/text")["id"]
        assert run["parameters"] == {"recipe": "text", "retrain": "when-new"}
        assert run["created_by"]["type"] == "AUTOMATION"
        api.delete(f"flow_runs/{run['id']}")
    finally:
        api.patch("work_pools/rl-train", {"is_paused": False})


def test_a_champion_by_hand_is_an_event_to_act_on(
    home: Path, api: PrefectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    # MLflow's registry looks there for the logged model.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    client = MlflowClient()
    client.create_registered_model("made")
    for _ in range(2):
        logged = client.create_logged_model(client.create_experiment(uuid4().hex))
        client.create_model_version("made", f"models:/{logged.model_id}")
    for version in (1, 1, 2):
        done(home, "promote", "made", str(version), "--reason", "for the test")

    def replaced() -> list[tuple[int, int | None]]:
        found = api.post("events/filter", {"filter": {"event": {"name": [CHAMPION]}}})["events"]
        return [(event["payload"]["version"], event["payload"]["before"]) for event in found]

    wait_until(lambda: (2, 1) in replaced(), "the event of the second version")
    assert replaced() == [(2, 1), (1, None)], "the second call replaced nothing"


def test_a_schedule_that_is_switched_on_gets_its_runs(api: PrefectApi) -> None:
    deployment = api.get("deployments/name/rl-train/mpo")
    (schedule,) = deployment["schedules"]
    assert not schedule["active"], "a fresh stack trains when it is told to"
    path = f"deployments/{deployment['id']}/schedules/{schedule['id']}"

    def scheduled() -> Any:
        ours = {"deployments": {"id": {"any_": [deployment["id"]]}}}
        return api.post(
            "flow_runs/filter", {**ours, "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
        )

    api.patch(path, {"active": True})
    try:
        runs = wait_until(scheduled, "the runs of the schedule")
    finally:
        api.patch(path, {"active": False})
    for run in runs:
        start = datetime.fromisoformat(run["expected_start_time"])
        assert (start.strftime("%A %H:%M"), start.utcoffset()) == ("Tuesday 03:00", timedelta(0))
        assert run["auto_scheduled"]
        assert run["parameters"] == {"recipe": "mpo"}
    assert scheduled() == [], "switched off, it takes its runs back"


@pytest.mark.long
def test_two_runs_of_the_training_pool_queue(api: PrefectApi) -> None:
    assert api.get("work_pools/rl-train")["concurrency_limit"] == 1
    # Without the limit both would start in the same second; each takes seconds to find that there
    # is no such recipe.
    runs = [api.start("rl-train/text", recipe=f"none-{number}") for number in (1, 2)]
    first, second = sorted(
        (api.wait_for_end(run) for run in runs), key=lambda run: run["start_time"]
    )
    assert (first["state"]["type"], second["state"]["type"]) == ("FAILED", "FAILED")
    assert "unknown recipe" in first["state"]["message"]
    assert first["end_time"] <= second["start_time"]
