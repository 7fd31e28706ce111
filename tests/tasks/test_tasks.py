"""The data and run tasks, called alone: what they reuse, why, and what they leave in MLflow."""

import errno
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import TerminationSignal
from prefect.logging import disable_run_logger
from prefect.states import Completed, exception_to_crashed_state, exception_to_failed_state
from prefect.utilities.asyncutils import run_coro_as_sync

from rl_core.errors import DataError, UserError, WorkerDied
from rl_core.runs.recipes import dump_recipe, parse_recipe
from rl_core.runtime.home import Home
from schemas.receipts import CacheReceipt, RunPlan, ValidationReport
from tasks.open_run import open_run
from tasks.prepare_cache import prepare_cache
from tasks.retrying import worth_retrying
from tasks.train_iteration import train_iteration
from tasks.validate_data import validate_data

Values = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One home for the module: the first tables of an MLflow database take seconds."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(root))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Home.default()


def write_rows(path: Path, questions: list[str]) -> Path:
    rows = [
        {
            "prompt": [{"role": "user", "content": question}],
            "env_class": "gsm8k",
            "reward_spec": {"method": "rule", "ground_truth": "3"},
        }
        for question in questions
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def recipe(
    tmp_path: Path, tiny_model_dir: Path, request: pytest.FixtureRequest
) -> Callable[..., Values]:
    """A recipe of the test's own, over four training rows and two held-out ones."""
    train = write_rows(tmp_path / "train.jsonl", ["1+2", "2+1", "0+3", "4-1"])
    held_out = write_rows(tmp_path / "held-out.jsonl", ["3+0", "5-2"])
    name = request.node.originalname.replace("_", "-")

    def make(**changes: Any) -> Values:
        values = {
            "name": name,
            "model": {"path": str(tiny_model_dir)},
            "data": {"train": [str(train)], "eval": [str(held_out)]},
        }
        return parse_recipe({**values, **changes}).model_dump(mode="json")

    return make


def prepared(recipe: Values) -> tuple[ValidationReport, CacheReceipt]:
    report = validate_data.fn(recipe)
    return report, prepare_cache.fn(recipe, report)


def opened(recipe: Values, *, fresh: bool = False) -> RunPlan:
    return open_run.fn(recipe, *prepared(recipe), fresh=fresh)


def test_validation_is_done_once_per_content(recipe, tmp_path: Path):
    first, second = validate_data.fn(recipe()), validate_data.fn(recipe())
    assert (first.num_rows, first.num_accepted, first.cached) == (6, 6, False)
    assert "first time" in first.explanation
    assert second.cached
    assert second.explanation.startswith("cached: the same files were validated before")
    assert second.model_dump(exclude={"cached", "explanation"}) == first.model_dump(
        exclude={"cached", "explanation"}
    )

    write_rows(tmp_path / "train.jsonl", ["1+2", "2+1", "0+3", "9-6"])
    third = validate_data.fn(recipe())
    assert not third.cached
    assert third.explanation == "validated: train.jsonl changed"


def test_a_bad_row_is_named_with_file_line_and_field(recipe, tmp_path: Path):
    path = tmp_path / "train.jsonl"
    lines = path.read_text().splitlines()
    broken = json.loads(lines[2])
    broken["reward_spec"].pop("ground_truth")
    path.write_text("\n".join([*lines[:2], json.dumps(broken), lines[3]]))
    with pytest.raises(DataError, match=r"train\.jsonl:3 field reward_spec: missing ground_truth"):
        validate_data.fn(recipe())


def test_preparation_is_a_hit_until_a_row_changes(recipe, tmp_path: Path):
    (_, first), (_, second) = prepared(recipe()), prepared(recipe())
    assert (first.hit, first.num_train_rows, first.num_eval_rows) == (False, 4, 2)
    assert "first preparation" in first.explanation
    assert second.hit
    assert second.explanation.startswith("cached: nothing changed since ")
    assert (second.run_hash, second.path) == (first.run_hash, first.path)

    write_rows(tmp_path / "train.jsonl", ["1+2", "2+1", "0+3", "9-6"])
    _, third = prepared(recipe())
    assert not third.hit
    assert third.explanation == "train.jsonl changed"
    assert third.run_hash != first.run_hash

    write_rows(tmp_path / "train.jsonl", ["1+2", "2+1", "0+3", "4-1"])
    _, fourth = prepared(recipe())
    assert fourth.hit, "the former content was prepared again"
    assert fourth.run_hash == first.run_hash


def test_preparation_follows_its_parameters_and_not_the_training(recipe):
    _, first = prepared(recipe())
    _, other_rate = prepared(recipe(optimizer={"learning_rate": 3e-4}))
    assert other_rate.hit
    _, shorter = prepared(recipe(data={**recipe()["data"], "max_prompt_length": 200}))
    assert not shorter.hit
    assert shorter.explanation == "max_prompt_length changed from 512 to 200"
    assert first.run_hash == other_rate.run_hash != shorter.run_hash


def test_a_run_records_its_recipe_data_and_parameters(recipe, home: Home):
    values = recipe(seed=11)
    report, cache = prepared(values)
    plan = open_run.fn(values, report, cache, fresh=False)
    run = MlflowClient(home.mlflow_uri).get_run(plan.mlflow_run_id)

    assert run.data.params["seed"] == "11"
    assert run.data.params["algorithm.name"] == "grpo"
    assert run.data.params["optimizer.learning_rate"] == "1e-05"
    assert run.data.tags["run_key"] == plan.run_key
    assert run.data.tags["cache_hash"] == cache.run_hash
    recorded = {entry.dataset.name.rpartition("/")[2]: entry for entry in run.inputs.dataset_inputs}
    assert set(recorded) == {"train.jsonl", "held-out.jsonl"}
    for source in cache.sources:
        tags = {tag.key: tag.value for tag in recorded[Path(source.path).name].tags}
        assert tags["sha256"] == source.sha256
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert (artifacts / "recipe.yaml").read_text() == dump_recipe(parse_recipe(values))
    assert (
        CacheReceipt.model_validate_json((artifacts / "receipts" / "cache.json").read_text())
        == cache
    )
    assert (
        ValidationReport.model_validate_json(
            (artifacts / "receipts" / "validation.json").read_text()
        )
        == report
    )
    assert (Path(plan.run_dir) / "recipe.yaml").read_text() == dump_recipe(parse_recipe(values))


def test_the_same_recipe_and_data_continue_the_same_run(recipe, tmp_path: Path):
    first = opened(recipe())
    marker = Path(first.run_dir) / "steps" / "kept.txt"
    marker.write_text("state")
    elsewhere = opened(recipe(placement={"micro_batch_size": 4}))
    assert (elsewhere.mlflow_run_id, elsewhere.run_dir) == (first.mlflow_run_id, first.run_dir)
    assert marker.exists()

    other_rate = opened(recipe(optimizer={"learning_rate": 3e-4}))
    write_rows(tmp_path / "train.jsonl", ["1+2", "2+1", "0+3", "9-6"])
    other_data = opened(recipe())
    assert len({plan.mlflow_run_id for plan in (first, other_rate, other_data)}) == 3
    assert len({plan.run_dir for plan in (first, other_rate, other_data)}) == 3


def test_fresh_discards_what_the_key_had(recipe):
    first = opened(recipe())
    marker = Path(first.run_dir) / "steps" / "kept.txt"
    marker.write_text("state")
    fresh = opened(recipe(), fresh=True)
    assert (fresh.run_key, fresh.run_dir) == (first.run_key, first.run_dir)
    assert fresh.mlflow_run_id != first.mlflow_run_id
    assert not marker.exists()
    assert opened(recipe()).mlflow_run_id == fresh.mlflow_run_id


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UserError("wrong"), False),
        (DataError("wrong row"), False),
        (WorkerDied("gone"), True),
        (ConnectionError("flaky"), True),
        (OSError(errno.ENOSPC, "full"), False),
    ],
    ids=["UserError", "DataError", "WorkerDied", "ConnectionError", "full disk"],
)
def test_only_what_the_user_cannot_put_right_is_retried(error: Exception, expected: bool):
    task_run = TaskRun(task_key="train-iteration", dynamic_key="0")
    failed = run_coro_as_sync(exception_to_failed_state(error))
    assert worth_retrying(train_iteration, task_run, failed) is expected


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), TerminationSignal(signal.SIGTERM)])
def test_an_error_that_a_library_made_of_an_interrupt_is_not_retried(ending: BaseException):
    task_run = TaskRun(task_key="train-iteration", dynamic_key="0")
    error = SystemError("returned a result with an exception set")
    error.__cause__ = ending
    failed = run_coro_as_sync(exception_to_failed_state(error))
    assert not worth_retrying(train_iteration, task_run, failed)


def test_a_crash_is_retried_and_a_success_is_not():
    task_run = TaskRun(task_key="train-iteration", dynamic_key="0")
    crashed = run_coro_as_sync(exception_to_crashed_state(ConnectionError("gone")))
    assert worth_retrying(train_iteration, task_run, crashed)
    assert not worth_retrying(train_iteration, task_run, Completed(data=1))
