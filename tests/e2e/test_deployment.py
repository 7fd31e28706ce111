"""The documented commands: server, work pool, deploy, worker, `prefect deployment run`, cancel.

Every smoke recipe trains here, on tiny models in place of the embedded ones; one of them by the command itself.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rl_core.recipes import recipe_names
from rl_core.reporting.metric_catalogue import unknown_metrics
from schemas.receipts import GateReceipt
from tests.e2e.outcomes import metrics_of
from tests.e2e.prefect_api import wait_until
from tests.e2e.services import Services, running_services
from tests.processes import command_line, still_running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def services(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model_dir: Path,
    tiny_vlm_dir: Path,
    tiny_sd3_dir: Path,
    tiny_unified_dir: Path,
) -> Iterator[Services]:
    # The smoke recipes read these; they name tiny models in place of the embedded ones.
    models = {
        "SMOKE_MODEL": str(tiny_model_dir),
        "SMOKE_VISION_MODEL": str(tiny_vlm_dir),
        "SMOKE_DIFFUSION_MODEL": str(tiny_sd3_dir),
        "SMOKE_UNIFIED_MODEL": str(tiny_unified_dir),
    }
    with running_services(tmp_path_factory.mktemp("services"), models) as services:
        yield services


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


def test_every_smoke_recipe_is_run_here() -> None:
    assert {f"smoke/{name}" for name in ALSO_SHOWN} == {name for name in recipe_names() if name.startswith("smoke/")}


@pytest.mark.parametrize("name", ALSO_SHOWN)
def test_a_deployment_run_completes_and_shows_what_it_did(services: Services, name: str) -> None:
    before = set(services.home.glob("runs/*"))
    if name == "text":
        services.prefect("deployment", "run", "rl-train/text", "-p", "recipe=smoke/text", "--watch")
        (run,) = services.api.post("flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 1})
    else:  # what that command asks of the API
        run = services.api.wait_for_end(services.api.start(f"rl-train/{name}", recipe=f"smoke/{name}"))
    assert (run["name"], run["state"]["type"]) == (f"rl-train smoke/{name}", "COMPLETED")
    tasks = services.api.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert {"train-iteration 1/2", "train-iteration 2/2", "evaluate baseline", "evaluate final"} <= {
        task["name"] for task in tasks
    }
    artifacts = services.api.post("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    assert SHOWN | ALSO_SHOWN[name] <= {artifact["key"] for artifact in artifacts}

    (folder,) = set(services.home.glob("runs/*")) - before
    assert bool(list(folder.glob("samples/pictures-final.png"))) == (ALSO_SHOWN[name] == PICTURES)
    metrics = metrics_of(services.home, folder)
    assert {"eval/accuracy", "eval/mean_reward"} <= metrics.keys()
    assert unknown_metrics(metrics) == [], "describe it in metric_catalogue.py"
    gate = GateReceipt.model_validate_json((folder / "receipts" / "judge-model.json").read_text())
    assert gate.compared_with == "baseline"


def test_cancelling_a_run_leaves_no_ray_process(services: Services, tiny_recipe: Path) -> None:
    overrides = json.dumps(["training.num_iterations=500", "seed=1"])
    services.prefect(
        "deployment", "run", "rl-train/text", "-p", f"recipe={tiny_recipe}", "-p", f"overrides={overrides}"
    )
    worker = psutil.Process(services.processes["worker"].pid)

    def ray_processes() -> list[psutil.Process]:
        return [child for child in worker.children(recursive=True) if "ray" in " ".join(command_line(child))]

    def training() -> bool:
        (run,) = services.api.post("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 1})
        tasks = services.api.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
        return any(task["name"].startswith("train-iteration 2/") for task in tasks)

    wait_until(training, "training to begin")
    started = ray_processes()
    assert started
    (run,) = services.api.post("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC", "limit": 1})
    services.prefect("flow-run", "cancel", run["id"])
    wait_until(lambda: services.api.flow_run(run["id"])["state"]["type"] == "CANCELLED", "the cancellation")
    assert not still_running(started)
