"""A server is evaluated on the rows and sets of a recipe, with an MLflow run of its own."""

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect.logging import disable_run_logger

from rl_core.errors import DataError, RecipeError
from rl_core.runs.evaluation import check_served, find_candidate
from rl_core.runs.run_folder import run_key
from rl_core.runs.served import evaluate_served
from rl_core.runtime.home import Home
from schemas.recipe import Recipe
from tasks.open_evaluation import open_evaluation
from tasks.prepare_cache import prepare_cache
from tasks.validate_data import validate_data
from tests.chat_server import Server, said
from tests.made_runs import recipe_of, write_rows


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Home.default()


def with_set(folder: Path, model: Path, questions: list[str]) -> dict[str, Any]:
    rows = write_rows(folder / "set.jsonl", questions)
    sets = {"a/b": {"data": [str(rows)], "samples": 2, "temperature": 0.5}}
    return recipe_of("served", folder, model, evaluation={"sets": sets})


@pytest.mark.slow
def test_rows_and_sets_are_put_to_the_server(
    home: Home, tmp_path: Path, tiny_model_dir: Path
) -> None:
    recipe = with_set(tmp_path, tiny_model_dir, ["8-5", "9-6"])
    server = Server(lambda body: said("#### 3" if "8-5" in str(body["messages"]) else "#### 4"))
    try:
        with disable_run_logger():
            cache = prepare_cache.fn(recipe, validate_data.fn(recipe))
            plan = open_evaluation.fn(recipe, cache, server.url)
        receipt = evaluate_served(plan, "evaluation", server.url, "tiny")
    finally:
        server.close()
    assert (cache.num_train_rows, cache.num_eval_rows, cache.sets["a/b"].num_rows) == (4, 4, 2)
    assert (receipt.num_rows, receipt.accuracy, receipt.graded) == (4, 0.0, False)
    found = receipt.sets["a/b"].measures
    assert (found["avg@2"].value, found["maj@2"].value, found["format_rate"].value) == (0.5, 0.5, 1)
    assert found["mean_length"].value == 5
    metrics = MlflowClient(home.mlflow_uri).get_run(plan.mlflow_run_id).data.metrics
    assert metrics["eval/a/b/pass_x40_2"] == 0.5
    assert evaluate_served(plan, "evaluation", server.url, "tiny").skipped
    assert plan.run_key == run_key(Recipe.model_validate(recipe), cache.identity)
    assert cache.identity != cache.run_hash


def test_a_question_of_a_set_is_not_trained_on(
    home: Home, tmp_path: Path, tiny_model_dir: Path
) -> None:
    recipe = with_set(tmp_path, tiny_model_dir, ["8-5", "1+2"])
    with disable_run_logger(), pytest.raises(DataError, match="also a held-out row"):
        validate_data.fn(recipe)


def test_the_model_on_a_server_has_a_name(home: Home, tmp_path: Path, tiny_model_dir: Path) -> None:
    recipe = Recipe.model_validate(with_set(tmp_path, tiny_model_dir, ["8-5"]))
    server = find_candidate("http://127.0.0.1:1/v1", home)
    assert check_served(server, "tiny", recipe) == "tiny"
    with pytest.raises(RecipeError, match="--served-model"):
        check_served(server, None, recipe)
    with pytest.raises(RecipeError, match="is no server"):
        check_served(find_candidate(str(tiny_model_dir), home), "tiny", recipe)
