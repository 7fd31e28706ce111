"""What a finished run shows of itself: task runs and artifacts in Prefect, metrics in MLflow, a
gate on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.receipts import GateReceipt
from tests.e2e.outcomes import metrics_of
from tests.e2e.prefect_api import PrefectApi
from tests.metric_notes import unknown_metrics

TASKS = {"train-iteration 1/2", "train-iteration 2/2", "evaluate baseline", "evaluate final"}
"""Some of those of a run of two iterations."""
SHOWN = {
    "validation", "cache", "progress", "reward-curve", "samples", "evaluation", "comparison", "mlflow-run", "model"  # noqa: E501
}  # fmt: skip
"""Artifacts of every run."""
PICTURES = "sample-pictures"
"""The one of runs that look at pictures or make them."""


def assert_shown(
    api: PrefectApi, run: dict[str, Any], home: Path, folder: Path, *, pictures: bool
) -> None:
    """Everything, of a smoke recipe's run. Args: run: as the API tells it; folder: the run's, in
    `home`."""
    assert run["state"]["type"] == "COMPLETED"
    tasks = api.post("task_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    assert {task["name"] for task in tasks} >= TASKS
    artifacts = api.post("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run["id"]]}}})
    keys = {artifact["key"] for artifact in artifacts}
    assert keys >= SHOWN
    assert (PICTURES in keys) == pictures == any(folder.glob("samples/pictures-final.png"))
    metrics = metrics_of(home, folder)
    assert {"eval/accuracy", "eval/mean_reward"} <= metrics.keys()
    assert unknown_metrics(metrics) == [], "describe it in metric_catalogue.py"
    gate = GateReceipt.model_validate_json((folder / "receipts" / "judge-model.json").read_text())
    assert gate.compared_with == "baseline"
