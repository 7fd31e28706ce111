"""`rl-train eval` and `export` of a model that was really trained."""

from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from rl_core.home import Home
from rl_core.trainers.evaluation import find_candidate
from schemas.receipts import EvalReceipt
from tests.command import answer
from tests.e2e.conftest import working_in

pytestmark = pytest.mark.slow


def test_a_version_measures_as_it_was_registered_and_its_export_is_measured_like_any_model(
    undisturbed: Path, tiny_recipe: Path, tmp_path: Path, ray_cluster: None
) -> None:
    from transformers import AutoModelForCausalLM

    from flows.rl_evaluate import rl_evaluate

    (trained,) = (undisturbed / "runs").iterdir()
    registered = EvalReceipt.model_validate_json((trained / "receipts" / "evaluate-final.json").read_text())
    said = answer(undisturbed, "eval", "models:/rl-train-tiny/1")
    assert f"recorded accuracy {registered.accuracy:.3f} on the same rows" in said
    (folder,) = (undisturbed / "evaluations").iterdir()
    again = EvalReceipt.model_validate_json((folder / "receipts" / "evaluate-evaluation.json").read_text())
    assert again.values() == registered.values()
    uri = f"sqlite:///{undisturbed / 'mlflow.db'}"
    run = MlflowClient(uri, uri).get_run(folder.name)
    assert run.info.status == "FINISHED"
    assert run.data.tags["evaluated_model"] == "rl-train-tiny v1"
    assert run.data.metrics["eval/accuracy"] == registered.accuracy
    assert len(list((undisturbed / "runs").iterdir())) == 1, "an evaluation is no training run"

    exported = tmp_path / "exported"
    answer(undisturbed, "export", "rl-train-tiny", "1", "--to", str(exported))
    assert AutoModelForCausalLM.from_pretrained(exported).num_parameters()
    fewer = yaml.safe_load(tiny_recipe.read_text())
    fewer["data"]["eval"][0]["size"] = 8
    (tmp_path / "fewer.yaml").write_text(yaml.safe_dump(fewer))
    with working_in(undisturbed):
        receipt = rl_evaluate(str(exported), str(tmp_path / "fewer.yaml"))
    assert receipt.num_rows == 8
    version = find_candidate("models:/rl-train-tiny/1", Home(undisturbed))
    assert version.recorded(again) == registered.accuracy
    assert version.recorded(receipt) is None, "what was recorded is of other rows"
