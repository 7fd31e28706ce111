"""Servers that go away while a run trains, and come back: the run goes on, and their records are
complete.

One training is watched by all tests: its Prefect and MLflow servers are killed after the second
iteration, and started again three iterations later. A second run of the same deployment waits for
it in the work pool.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rl_core.services.exposure import LOCALHOST
from rl_core.services.ports import free_port
from tests.e2e.outcomes import logged_metrics, run_folder
from tests.e2e.prefect_api import wait_until
from tests.e2e.services import Services, running_services

pytestmark = pytest.mark.slow
NUM_ITERATIONS = 18
STEPS_PER_ITERATION = 2
DEADLINE_S = 900


@dataclass(frozen=True)
class Watched:
    """What was seen of the two runs."""

    services: Services
    first: dict[str, Any]
    second: dict[str, Any]
    second_while_first_trained: str
    iterations_during_outage: int


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Path) -> Iterator[Watched]:
    port = free_port(LOCALHOST)
    with running_services(
        tmp_path_factory.mktemp("services"), {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
    ) as s:
        s.start_mlflow(port)
        overrides = [
            f"training.num_iterations={NUM_ITERATIONS}",
            f"training.steps_per_iteration={STEPS_PER_ITERATION}",
        ]
        first = s.api.start("rl-train/text", recipe=str(tiny_recipe), overrides=overrides)
        second = s.api.start(
            "rl-train/text", recipe=str(tiny_recipe), overrides=overrides, retrain="when-new"
        )
        wait_until(lambda: iterations_in(s.home) >= 2, "two iterations", DEADLINE_S)
        waits = s.api.flow_run(second)["state"]["type"]
        s.kill("mlflow")
        s.kill("server")
        at_kill = iterations_in(s.home)
        wait_until(
            lambda: iterations_in(s.home) >= at_kill + 3, "three more without servers", DEADLINE_S
        )
        during = iterations_in(s.home) - at_kill
        s.start_server()
        s.start_mlflow(port)
        first_ended = s.api.wait_for_end(first, DEADLINE_S)
        second_ended = s.api.wait_for_end(second, DEADLINE_S)
        yield Watched(s, first_ended, second_ended, waits, during)


def iterations_in(home: Path) -> int:
    """How many iterations of the one run are on disk."""
    return len(list(home.glob("runs/*/receipts/iteration-*.json")))


def test_training_goes_on_without_its_servers(watched: Watched) -> None:
    assert watched.iterations_during_outage >= 3
    assert watched.first["state"]["name"] == "Completed"


def test_the_prefect_server_has_every_task_run_and_artifact(watched: Watched) -> None:
    run = {"any_": [watched.first["id"]]}

    def tasks() -> dict[str, str]:
        found = watched.services.api.post("task_runs/filter", {"flow_runs": {"id": run}})
        return {task["name"]: task["state"]["type"] for task in found}

    # Task runs are recorded from events, some seconds after the run's own end.
    wait_until(lambda: "RUNNING" not in tasks().values(), "the last task runs")
    names = {
        f"train-iteration {number}/{NUM_ITERATIONS}" for number in range(1, NUM_ITERATIONS + 1)
    }
    assert names | {"evaluate baseline", "evaluate final"} <= tasks().keys()
    assert set(tasks().values()) == {"COMPLETED"}
    artifacts = watched.services.api.post("artifacts/filter", {"artifacts": {"flow_run_id": run}})
    keys = [artifact["key"] for artifact in artifacts]
    bars = [artifact for artifact in artifacts if artifact["key"] == "progress"]
    done = {bar["task_run_id"] for bar in bars if bar["data"] == 100.0}
    assert len(done) == NUM_ITERATIONS, "a progress bar per iteration, at its end"
    # The server may have stored what it died answering, and is then sent it again.
    twice = len(bars) - NUM_ITERATIONS, keys.count("reward-curve") - (NUM_ITERATIONS + 1)
    assert min(twice) >= 0, "a curve per iteration, and one of all"
    assert sum(twice) <= 1, twice
    assert {"validation", "samples", "evaluation", "comparison", "model", "report"} <= set(keys)


def test_no_metric_is_lost_while_the_mlflow_server_is_down(watched: Watched) -> None:
    home = watched.services.home
    files = sorted((run_folder(home) / "steps").glob("iteration-*.jsonl"))
    steps = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert [step["step"] for step in steps] == list(
        range(1, NUM_ITERATIONS * STEPS_PER_ITERATION + 1)
    )
    logged = logged_metrics(home)
    for name in {name for step in steps for name in step if name != "step"}:
        assert logged[name] == [step[name] for step in steps if name in step], name
    assert len(logged["eval/accuracy"]) == 2
    assert (run_folder(home) / "mlflow-outbox.jsonl").read_text() == ""


def test_a_second_run_waits_for_the_first_and_finds_nothing_new(watched: Watched) -> None:
    assert watched.second_while_first_trained == "SCHEDULED"
    assert watched.second["state"]["name"] == "NothingNew"
    assert watched.first["end_time"] <= watched.second["start_time"]
