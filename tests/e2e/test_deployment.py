"""The documented commands: server, work pool, deploy, worker, `prefect deployment run`, cancel.

The models are tiny ones in place of the embedded ones.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from mlflow import MlflowClient

from tests.e2e.conftest import REPOSITORY
from tests.e2e.prefect_api import wait_until
from tests.e2e.services import Services, running_services
from tests.e2e.shown import assert_shown
from tests.processes import command_line, still_running

pytestmark = pytest.mark.slow

ENVIRONMENT = """
from rl_core.envs import BaseTextEnv


class Vowels(BaseTextEnv):
    def step(self, action):
        self.turns += 1
        share = sum(one in "aeiou" for one in action) / max(1, len(action))
        return {"observations": [], "reward": share, "done": True, "metadata": {}}
"""
DEPLOYED = "vision"
"""The deployment that runs its smoke recipe here. The others differ in the recipe alone, and
`test_smoke_recipes.py` runs those."""


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory, smoke_models: dict[str, str]
) -> Iterator[Services]:
    with running_services(tmp_path_factory.mktemp("services"), smoke_models) as services:
        yield services


def test_a_deployment_run_completes_and_shows_what_it_did(services: Services) -> None:
    before = set(services.home.glob("runs/*"))
    recipe = f"smoke/{DEPLOYED}"
    deployment = f"rl-train/{DEPLOYED}"
    services.prefect("deployment", "run", deployment, "-p", f"recipe={recipe}", "--watch")
    (run,) = services.api.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    assert run["name"] == f"rl-train {recipe}"
    (folder,) = set(services.home.glob("runs/*")) - before
    assert_shown(services.api, run, services.home, folder, pictures=True)


@pytest.mark.long
def test_a_chain_is_run_as_a_deployment(services: Services) -> None:
    before = set(services.home.glob("runs/*"))
    services.prefect("deployment", "run", "rl-train/chain", "-p", "recipe=smoke/chain", "--watch")
    found = services.api.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 3})
    names = [run["name"] for run in found]
    assert names == ["rl-train smoke-chain rl", "rl-train smoke-chain sft", "rl-train smoke/chain"]
    assert [run["state"]["type"] for run in found] == ["COMPLETED"] * 3
    folders = set(services.home.glob("runs/*")) - before
    assert {one.name.rpartition("-")[0] for one in folders} == {"smoke-chain-sft", "smoke-chain-rl"}


def test_a_recipe_of_ones_own_is_deployed_with_its_module_and_its_paths(
    services: Services, tiny_recipe: Path, tmp_path: Path
) -> None:
    """Rows, model and environment are named relative to the recipe; the worker runs elsewhere."""
    values = yaml.safe_load(tiny_recipe.read_text())
    shutil.copytree(values["model"]["path"], tmp_path / "model")
    (tmp_path / "vowels.py").write_text(ENVIRONMENT)
    for name, verb in (("train", "say"), ("eval", "tell")):
        rows = [
            {
                "prompt": [{"role": "user", "content": f"{verb} {number}"}],
                "env_class": "vowels",
                "reward_spec": {"ground_truth": "a"},
            }
            for number in range(8)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    values |= {"name": "own", "model": {"path": "model"}}
    values["environments"] = {"vowels": {"target": "vowels:Vowels"}}
    values["data"] = {"train": ["train.jsonl"], "eval": ["eval.jsonl"], "max_prompt_length": 100}
    values["training"] = {"num_iterations": 1, "steps_per_iteration": 1, "prompts_per_step": 2}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(values))
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "deploy", "own.yaml", "--name", "mine"],
        cwd=tmp_path,
        env=services.environment | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    services.prefect("deployment", "run", "rl-train/mine", "--watch")
    (run,) = services.api.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    assert run["state"]["type"] == "COMPLETED"
    assert len(list(services.home.glob("runs/own-*/model"))) == 1


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
