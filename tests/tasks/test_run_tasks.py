"""The tasks of a run, called alone one after the other on a tiny model and real workers: what each
returns, and what it leaves in the run's folder and in MLflow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from prefect.logging import disable_run_logger

from rl_core.builtin.data.make_fixture import make_fixture
from rl_core.errors import DataError
from rl_core.evaluation.runner import read_samples
from rl_core.runs.recipes import parse_recipe
from rl_core.runs.session import close_sessions, session_for
from rl_core.runtime.home import Home
from schemas.receipts import EvalReceipt, IterationReceipt, RunPlan
from tasks.evaluate import evaluate
from tasks.export_model import export_model
from tasks.open_evaluation import open_evaluation
from tasks.open_run import open_run
from tasks.prepare_cache import prepare_cache
from tasks.prepare_stage import prepare_stage
from tasks.train_iteration import train_iteration
from tasks.validate_data import validate_data
from tasks.write_report import write_report
from tests.made_runs import recipe_of


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One home for the module: the first tables of an MLflow database take seconds."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(root))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Home.default()
    close_sessions()


@pytest.fixture(scope="module")
def run(
    home: Home, tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> tuple[RunPlan, EvalReceipt, IterationReceipt, EvalReceipt]:
    """A run of two steps: its plan, and what its tasks returned."""
    recipe = recipe_of(
        "tasks-of-a-run",
        tmp_path_factory.mktemp("rows"),
        tiny_model_dir,
        rollout={"samples_per_prompt": 2, "max_new_tokens": 4},
        training={"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": 2},
        evaluation={"max_new_tokens": 4},
    )
    report = validate_data.fn(recipe)
    plan = open_run.fn(recipe, report, prepare_cache.fn(recipe, report), fresh=True)
    baseline = evaluate.fn(plan, "baseline", 0)
    trained = train_iteration.fn(plan, 1)
    export_model.fn(plan)
    final = evaluate.fn(plan, "final", 1, baseline, exported=True)
    return plan, baseline, trained, final


def test_an_iteration_returns_its_means_and_is_skipped_when_it_is_complete(run, home: Home):
    plan, _, trained, _ = run
    assert not trained.skipped
    again = train_iteration.fn(plan, 1)
    assert again.skipped
    assert again.model_copy(update={"skipped": False}) == trained
    steps = MlflowClient(home.mlflow_uri).get_metric_history(plan.mlflow_run_id, "reward_mean")
    assert [point.step for point in steps] == [1, 2]


def test_an_evaluation_answers_every_held_out_row_and_logs_its_scores(run, home: Home):
    plan, baseline, _, final = run
    for receipt, step in ((baseline, 0), (final, 2)):
        rows = read_samples(receipt.samples_path)
        assert (receipt.num_rows, receipt.step) == (len(rows), step) == (4, step)
        assert receipt.mean_reward == sum(row["reward"] for row in rows) / len(rows)
        assert receipt.ci_low <= receipt.accuracy <= receipt.ci_high
    assert baseline.eval_digest == final.eval_digest, "the same rows, under the same settings"
    metrics = MlflowClient(home.mlflow_uri).get_run(plan.mlflow_run_id).data.metrics
    assert metrics["eval/accuracy"] == final.accuracy


def test_an_evaluation_that_is_there_is_not_done_again(run):
    plan, baseline, _, _ = run
    again = evaluate.fn(plan, "baseline", 0)
    assert again.skipped
    assert again.model_copy(update={"skipped": False}) == baseline


def test_the_report_lies_in_the_run_and_in_mlflow(run, home: Home):
    plan, _, _, final = run
    path = Path(write_report.fn(plan))
    assert path == Path(plan.run_dir) / "report.html"
    page = path.read_text(encoding="utf-8")
    assert "tasks-of-a-run" in page
    assert f"{final.accuracy:.3f}" in page
    # Files are sent in the background.
    session_for(plan).tracking.flush()
    names = [one.path for one in MlflowClient(home.mlflow_uri).list_artifacts(plan.mlflow_run_id)]
    assert "report.html" in names


def test_an_evaluation_of_a_folder_is_a_run_of_its_own_and_trains_nothing(run, home: Home):
    plan, _, _, final = run
    recipe = parse_recipe(plan.recipe).model_dump(mode="json")
    cache = prepare_cache.fn(recipe, validate_data.fn(recipe))
    opened = open_evaluation.fn(recipe, cache, str(Path(plan.run_dir) / "model"))
    assert opened.mlflow_run_id != plan.mlflow_run_id
    assert Path(opened.run_dir).parent == home.root / "evaluations"
    # A process has workers of one run at a time, as a flow has.
    close_sessions()
    receipt = evaluate.fn(opened, "evaluation", 0)
    assert (receipt.accuracy, receipt.mean_reward) == (final.accuracy, final.mean_reward)
    said = [[row["response"] for row in read_samples(one.samples_path)] for one in (receipt, final)]
    assert said[0] == said[1], "the exported weights are those that were judged"


def test_a_stage_is_prepared_once_and_registered(home: Home, tmp_path: Path):
    raw, out = make_fixture(tmp_path / "raw")["vision"], tmp_path / "out"
    built = prepare_stage.fn("vision", input_dir=str(raw), output_dir=str(out))
    assert not built.hit
    assert Path(built.artifact_path).exists()
    again = prepare_stage.fn("vision", input_dir=str(raw), output_dir=str(out))
    assert again.hit and again.run_hash == built.run_hash
    anew = prepare_stage.fn("vision", input_dir=str(raw), output_dir=str(out), force=True)
    assert not anew.hit and anew.run_hash == built.run_hash
    client = MlflowClient(home.mlflow_uri)
    experiment = client.get_experiment_by_name("rl-prepare")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert any(built.run_hash in json.dumps(run.data.to_dictionary()) for run in runs)


def test_a_stage_without_its_files_says_which(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    with pytest.raises(DataError, match=r"images\.zip"):
        prepare_stage.fn(
            "vision",
            overrides=["source_uri=null"],
            input_dir=str(tmp_path / "raw"),
            output_dir=str(tmp_path / "out"),
        )
