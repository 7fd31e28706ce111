"""Taking a registered version along: whole, checked, with its lineage, or not at all."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from prefect.logging import disable_run_logger

from flows.commands.models import export
from rl_core.errors import ModelError, RecipeError, StorageError
from rl_core.runs.evaluation import evaluation_recipe, find_candidate
from rl_core.runs.session import close_sessions
from rl_core.runtime.home import Home
from rl_core.tracking.lineage import trace
from rl_core.tracking.model_card import ensure_card
from rl_core.tracking.model_folder import export_version
from tests.made_runs import make_run, recipe_of, register


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Home]:
    """A home with one registered version, `rl-train-taken/1`."""
    folder = tmp_path_factory.mktemp("export")
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(folder / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        register(make_run(recipe_of("taken", folder, tiny_model_dir), [0.0] * 4, [1.0] * 4))
        yield Home.default()
    close_sessions()


def test_an_export_holds_the_registered_weights_and_where_they_came_from(
    home: Home, tmp_path: Path
):
    lineage = trace(home.mlflow_uri, "models:/rl-train-taken/1")
    written = export_version(lineage, tmp_path / "taken")
    assert (written / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((written / "lineage.json").read_text()) == json.loads(
        json.dumps(lineage.to_dict())
    )
    assert [path.name for path in tmp_path.iterdir()] == ["taken"], "something was left beside it"
    with pytest.raises(StorageError, match="not an empty folder"):
        export_version(lineage, tmp_path / "taken")


def test_an_export_has_a_card_with_data_scores_intervals_and_metadata(home: Home, tmp_path: Path):
    written = export_version(trace(home.mlflow_uri, "models:/rl-train-taken/1"), tmp_path / "card")
    card = ModelCard.load(written / "README.md")
    data = card.data
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert data.base_model is None, "a folder of this machine is no model of the hub"
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value) == ("accuracy", 1.0)
    assert "accuracy | 1 [0.5101, 1] | 0 [0, 0.4899]" in card.text
    assert "4 training rows, 4 held out" in card.text
    assert "`train.jsonl`, sha256" in card.text
    assert "name: taken" in card.text and "AutoModelForCausalLM" in card.text


def test_peft_leaves_no_empty_card(home: Home, tmp_path: Path):
    lineage = trace(home.mlflow_uri, "models:/rl-train-taken/1")
    (tmp_path / "README.md").write_text("---\nbase_model: x\n---\n[More Information Needed]\n")
    (tmp_path / "adapter_config.json").write_text("{}")
    ensure_card(tmp_path, lineage)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "peft" and "More Information" not in card.text
    assert "accuracy | 1 |" in card.text, "the registered scores stand in for the receipts"


@pytest.mark.parametrize(
    ("whole", "said"), [(True, "trains on from there"), (False, "adapters alone")]
)
def test_the_command_promises_what_the_folder_can_do(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: bool, said: str
):
    config = Path(trace(home.mlflow_uri, "models:/rl-train-taken/1").model_dir) / "config.json"
    if whole:
        config.write_text("{}")
    try:
        export("models:/rl-train-taken/1", to=tmp_path / "taken")
    finally:
        config.unlink(missing_ok=True)
    assert said in capsys.readouterr().out


def test_changed_or_missing_weights_are_not_exported(home: Home, tmp_path: Path):
    lineage = trace(home.mlflow_uri, "models:/rl-train-taken/1")
    weights = Path(lineage.model_dir) / "model.safetensors"
    weights.write_bytes(b"others")
    try:
        with pytest.raises(StorageError, match="were changed"):
            export_version(lineage, tmp_path / "taken")
        weights.parent.rename(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="are gone"):
            export_version(lineage, tmp_path / "taken")
        with pytest.raises(ModelError, match="no such folder"):
            find_candidate("models:/rl-train-taken/1", home)
    finally:
        if not weights.parent.is_dir():
            (tmp_path / "elsewhere").rename(weights.parent)
        weights.write_bytes(b"weights")
    assert not (tmp_path / "taken").exists()


def test_what_is_evaluated_falls_back_on_the_recipe_of_its_training(home: Home, tmp_path: Path):
    model = Path(trace(home.mlflow_uri, "models:/rl-train-taken/1").model_dir)
    (model / "config.json").write_text("{}")
    version = find_candidate("models:/rl-train-taken/1", home)
    assert (version.name, version.weights) == ("rl-train-taken v1", str(model))
    recipe = evaluation_recipe(version, None, ["evaluation.max_new_tokens=7"], None, home)
    assert (recipe.name, recipe.evaluation.max_new_tokens) == ("taken", 7)
    assert evaluation_recipe(version, "smoke/text", [], None, home).name != "taken"
    (tmp_path / "config.json").write_text("{}")
    folder = find_candidate(str(tmp_path), home)
    with pytest.raises(RecipeError, match="--recipe"):
        evaluation_recipe(folder, None, [], None, home)
    with pytest.raises(RecipeError, match="temprature"):
        evaluation_recipe(version, None, ["rollout.temprature=1"], None, home)
