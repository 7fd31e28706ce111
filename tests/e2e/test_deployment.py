"""The documented commands: server, work pool, deploy, worker, `prefect deployment run`, cancel."""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.outcomes import run_folder
from tests.e2e.prefect_api import wait_until
from tests.e2e.services import Services, running_services
from tests.e2e.shown import assert_shown
from tests.processes import command_line, still_running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory, smoke_models: dict[str, str]
) -> Iterator[Services]:
    with running_services(tmp_path_factory.mktemp("services"), smoke_models) as services:
        yield services


def test_a_deployment_run_completes_and_shows_what_it_did(services: Services) -> None:
    services.prefect("deployment", "run", "rl-train/vision", "-p", "recipe=smoke/vision", "--watch")
    (run,) = services.api.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    assert run["name"] == "rl-train smoke/vision"
    assert_shown(services.api, run, services.home, run_folder(services.home), pictures=True)


def test_cancelling_a_run_leaves_no_ray_process(services: Services, tiny_recipe: Path) -> None:
    overrides = json.dumps(["training.num_iterations=500", "seed=1"])
    services.prefect(
        "deployment",
        "run",
        "rl-train/text",
        "-p",
        f"recipe={tiny_recipe}",
        "-p",
        f"overrides={overrides}",
    )
    worker = psutil.Process(services.processes["worker"].pid)

    def ray_processes() -> list[psutil.Process]:
        return [
            child
            for child in worker.children(recursive=True)
            if "ray" in " ".join(command_line(child))
        ]

    def training() -> bool:
        (run,) = services.api.post(
            "flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 1}
        )
        tasks = services.api.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
        return any(task["name"].startswith("train-iteration 2/") for task in tasks)

    wait_until(training, "training to begin")
    started = ray_processes()
    assert started
    (run,) = services.api.post("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 1})
    services.prefect("flow-run", "cancel", run["id"])
    wait_until(
        lambda: services.api.flow_run(run["id"])["state"]["type"] == "CANCELLED", "the cancellation"
    )
    assert not still_running(started)
