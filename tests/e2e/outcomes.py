"""What the one run of a home left there: its folder, weights, metrics and held-out scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from mlflow import MlflowClient
from safetensors.torch import load_file

from rl_core.evaluation.runner import read_samples


def run_folder(home: Path) -> Path:
    """Of the one run in this home."""
    (folder,) = (home / "runs").iterdir()
    return folder


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a saved model, by file and name."""
    files = sorted(folder.rglob("*.safetensors"))
    assert files, f"no weights in {folder}"
    return {
        f"{file.relative_to(folder)} {name}": value
        for file in files
        for name, value in load_file(file).items()
    }


def trained_weights(home: Path) -> dict[str, torch.Tensor]:
    """What the one run in this home exported."""
    return weights_in(run_folder(home) / "model")


def is_trained(base: Path, exported: Path) -> bool:
    """Whether an export differs from the model it began as."""
    before, after = weights_in(base), weights_in(exported)
    common = before.keys() & after.keys()
    assert common, f"{exported} has nothing of {base}"
    return any(not torch.equal(before[name], after[name]) for name in common)


def assert_identical(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    """Bit by bit."""
    assert one.keys() == two.keys()
    different = [name for name in one if not torch.equal(one[name], two[name])]
    assert not different


def logged_metrics(home: Path) -> dict[str, list[float]]:
    """Every metric of the one run in this home, in the order it was logged."""
    return metrics_of(home, run_folder(home))


def metrics_of(home: Path, run: Path) -> dict[str, list[float]]:
    """Every metric of a run, in the order it was logged. Args: run: its folder."""
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    run_id = json.loads((run / "run.json").read_text())["mlflow_run_id"]
    names = client.get_run(run_id).data.metrics
    return {
        name: [point.value for point in client.get_metric_history(run_id, name)] for name in names
    }


PLACES = ("made", "images")
"""Paths, which differ between homes."""


def held_out_scores(home: Path) -> list[dict[str, Any]]:
    """Replies and scores of the trained weights, row by row."""
    rows = read_samples(run_folder(home) / "samples" / "evaluate-final.jsonl")
    return [{name: value for name, value in row.items() if name not in PLACES} for row in rows]
