"""A real run of smoke/text stores every row that it sampled: read, computed anew, and shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rl_core.runs.rollouts.reading import files_of, read_rows
from rl_core.runtime.home import sqlite_url
from rl_core.runtime.settings_files import read_yaml
from tests.command import answer
from tests.e2e.conftest import REPOSITORY, train_here
from tests.e2e.outcomes import run_folder
from tests.e2e.test_smoke_recipes import assert_here_shown

SMOKE = REPOSITORY / "deployments" / "recipes" / "smoke" / "text.yaml"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_what_a_run_sampled_can_be_read(
    tmp_path: Path, smoke_models: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in smoke_models.items():
        monkeypatch.setenv(name, value)
    train_here(SMOKE, tmp_path, "tracking.traces=2")
    assert_here_shown(str(SMOKE), tmp_path, pictures=False)
    folder = run_folder(tmp_path)
    training = read_yaml(SMOKE)["training"]
    num_rows = training["prompts_per_step"] * read_yaml(SMOKE)["rollout"]["samples_per_prompt"]
    files = files_of(folder / "rollouts")
    assert list(files) == [1, 2, 3, 4]
    rows = {step: list(read_rows(path)) for step, path in files.items()}
    history = [
        json.loads(line)
        for path in sorted((folder / "steps").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    for step in history:
        stored = rows[int(step["step"])]
        assert len(stored) == num_rows
        assert len({row["sample_id"] for row in stored}) == num_rows
        mean = sum(row["reward"] for row in stored) / num_rows
        assert mean == pytest.approx(step["reward_mean"])
        assert all(row["data_source"] == "reasoning_gym/chain_sum" for row in stored)

    shown = answer(tmp_path, "rollouts", folder.name, "--step", "2", "--sort", "length", "--json")
    lengths = [json.loads(line)["num_tokens"] for line in shown.splitlines()]
    assert lengths == sorted((row["num_tokens"] for row in rows[2]), reverse=True)[:10]

    again = answer(tmp_path, "rescore", folder.name, "--recipe", str(SMOKE), **smoke_models)
    assert f"{4 * num_rows} rows, 0 with another reward, 0 without" in again

    run_id = json.loads((folder / "run.json").read_text())["mlflow_run_id"]
    client = MlflowClient(sqlite_url(tmp_path / "mlflow.db"))
    traces = client.search_traces([client.get_run(run_id).info.experiment_id])
    assert sorted(trace.info.tags["step"] for trace in traces) == list("11223344")
    assert {trace.info.trace_metadata["mlflow.sourceRun"] for trace in traces} == {run_id}
    assert all(len(trace.data.spans) == 3 for trace in traces), "whole, reply, reward"

    page = (folder / "rollouts.html").read_text()
    assert 'href="rollouts.html"' in (folder / "report.html").read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    embedded = json.loads(data)["rows"]
    assert len(embedded) == 4 * num_rows
    assert all(row["tokens"] and not row["tokens"][0][0].startswith("⟨") for row in embedded)
