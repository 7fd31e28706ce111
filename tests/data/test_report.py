"""The report of a file with 1,000 bad rows of ten kinds, wherever a person may look for it."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from rl_core.errors import DataError
from rl_core.runtime.home import Home
from tests.command import rl_train
from tests.data.ten_kinds import COUNTS, GOOD, write_ten_kinds


@pytest.fixture(scope="module")
def bad_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    path = tmp_path_factory.mktemp("ten") / "bad.jsonl"
    return path, write_ten_kinds(path)


def test_terminal_shows_counts_by_field_and_reason_and_the_first_lines_of_each(
    bad_file, tmp_path: Path
) -> None:
    path, first = bad_file
    done = rl_train(tmp_path, "validate", str(path), COLUMNS="300")
    assert done.returncode == 2
    assert done.stdout.startswith("3000 of 4000 rows are good")
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in done.stdout.splitlines()
        if "│" in line
    ]
    table = {row[1]: (int(row[2]), row[3].partition(",")[0]) for row in rows if row[0]}
    assert table == {
        reason: (count, f"bad.jsonl:{first[reason]}") for reason, count in COUNTS.items()
    }
    assert "error: 1000 of 4000 rows are refused" in done.stderr


def test_json_is_the_whole_report(bad_file, tmp_path: Path) -> None:
    path, first = bad_file
    done = rl_train(tmp_path, "validate", str(path), "--format", "json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert (report["num_rows"], report["num_accepted"], report["rejected_by_reason"]) == (
        4000,
        3000,
        COUNTS,
    )
    places: dict[str, int] = {}
    for example in report["examples"]:
        places.setdefault(example["reason"], example["row"])
    assert places == first
    rejects = [json.loads(line) for line in Path(report["rejects_path"]).read_text().splitlines()]
    assert len(rejects) == 1000
    assert {(one["reason"], one["row"]) for one in rejects} >= set(first.items())


def test_good_file_exits_with_zero_and_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "good.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    done = rl_train(tmp_path / "home", "validate", str(path), "--format", "json")
    assert (done.returncode, done.stderr, json.loads(done.stdout)["num_accepted"]) == (0, "", 1)


@pytest.mark.slow
def test_held_out_files_are_compared_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    done = rl_train(tmp_path / "home", "validate", str(path), "--held-out", str(path))
    assert done.returncode == 2
    assert "also a held-out row" in done.stderr


def test_convert_on_the_command_line(tmp_path: Path) -> None:
    source, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(GOOD) + "\n")
    done = rl_train(
        tmp_path / "home", "data", "convert", str(source), str(target), "--to", "response"
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"1 response rows written to {target}")
    assert json.loads(target.read_text())["responses_create_params"]["input"] == GOOD["prompt"]


def recipe(train: Path, held_out: Path, **data: Any) -> dict[str, Any]:
    from rl_core.runs.recipes import parse_recipe

    values = {
        "name": "ten-kinds",
        "model": {"path": "unused"},
        "data": {"train": [str(train)], "eval": [str(held_out)], **data},
    }
    return parse_recipe(values).model_dump(mode="json")


@pytest.mark.slow
def test_prefect_and_mlflow_show_it_although_the_rows_are_refused(
    bad_file, prefect_harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.runtime import flow_run

    from rl_core.tracking.validation import EXPERIMENT
    from tasks.prefect_ui.artifacts import delivered
    from tasks.validate_data import validate_data

    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path, first = bad_file
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(
        json.dumps({**GOOD, "prompt": [{"role": "user", "content": "7 + 7"}]}) + "\n"
    )

    checks: list[str] = []  # ids of flow runs: other tests use the same server

    @flow
    def check() -> None:
        checks.append(flow_run.id)
        with delivered():
            validate_data(recipe(path, held_out))

    with pytest.raises(DataError, match="1000 of 4001 rows are refused"):
        check()

    with get_client(sync_client=True) as client:
        only = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(checks[0])]))
        found = {one.key: one.data for one in client.read_artifacts(flow_run_filter=only)}
    counts = {row["what"]: row["count"] for row in json.loads(str(found["validation"]))}
    assert {reason: int(counts[f"refused: {reason}"]) for reason in COUNTS} == COUNTS
    shown = {
        row["reason"]: row["row"]
        for row in reversed(json.loads(str(found["validation-refused-rows"])))
    }
    assert shown == {reason: f"{path}:{line}" for reason, line in first.items()}

    mlflow = MlflowClient(Home.default().mlflow_uri)
    experiment = mlflow.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    (run,) = mlflow.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    assert run.data.metrics["validation/rows"] == 4001
    assert {
        reason: run.data.metrics[f"validation/rejected/{reason}"] for reason in COUNTS
    } == COUNTS
    artifacts = Path(str(run.info.artifact_uri).removeprefix("file://")) / "validation"
    assert len((artifacts / "rejects.jsonl").read_text().splitlines()) == 1000
    table = json.loads((artifacts / "examples.json").read_text())
    assert set(first.items()) <= {
        (row[table["columns"].index("reason")], row[table["columns"].index("row")])
        for row in table["data"]
    }
