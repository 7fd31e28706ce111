"""The documented commands: server, work pool, deploy, worker, `prefect deployment run`, cancel.

Every deployment of `rl-train` runs its smoke recipe, on tiny models in place of the embedded ones.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from rl_core.runs.recipes import recipe_names
from tests.e2e.prefect_api import wait_until
from tests.e2e.services import Services, running_services
from tests.e2e.shown import assert_shown
from tests.processes import command_line, still_running

pytestmark = pytest.mark.slow

HAS_PICTURES = {
    "text": False,
    "vision": True,
    "mpo": False,
    "reward-model": False,
    "distill": False,
    "judge": False,
    "sft": False,
    "agent": False,
    "tools": False,
    "diffusion": True,
    "pe": True,
    "unified": True,
}
"""Deployments of `rl-train`, each with a smoke recipe of its name."""


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory, smoke_models: dict[str, str]
) -> Iterator[Services]:
    with running_services(tmp_path_factory.mktemp("services"), smoke_models) as services:
        yield services


def test_every_smoke_recipe_is_run_here() -> None:
    others = {"smoke/flow-sft"}  # its parts are run in tests/trainers/test_flow_sft.py
    assert {f"smoke/{name}" for name in HAS_PICTURES} | others == {
        name for name in recipe_names() if name.startswith("smoke/")
    }


@pytest.mark.parametrize("name", HAS_PICTURES)
def test_a_deployment_run_completes_and_shows_what_it_did(services: Services, name: str) -> None:
    before = set(services.home.glob("runs/*"))
    recipe = f"smoke/{name}"
    services.prefect("deployment", "run", f"rl-train/{name}", "-p", f"recipe={recipe}", "--watch")
    (run,) = services.api.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    assert run["name"] == f"rl-train {recipe}"
    (folder,) = set(services.home.glob("runs/*")) - before
    assert_shown(services.api, run, services.home, folder, pictures=HAS_PICTURES[name])


def test_a_chain_is_run_as_a_deployment(services: Services) -> None:
    before = set(services.home.glob("runs/*"))
    services.prefect("deployment", "run", "rl-train/chain", "-p", "recipe=smoke/chain", "--watch")
    found = services.api.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 3})
    names = [run["name"] for run in found]
    assert names == ["rl-train smoke-chain rl", "rl-train smoke-chain sft", "rl-train smoke/chain"]
    assert [run["state"]["type"] for run in found] == ["COMPLETED"] * 3
    folders = set(services.home.glob("runs/*")) - before
    assert {one.name.rpartition("-")[0] for one in folders} == {"smoke-chain-sft", "smoke-chain-rl"}


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
    client = MlflowClient(f"sqlite:///{services.home / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`prefect.flow_run_id` = '{run['id']}'")
    assert [one.info.status for one in found] == ["KILLED"]
