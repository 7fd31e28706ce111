"""`rl-train eval` and `export` of a model that was really trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from mlflow import MlflowClient

from rl_core.evaluation.runner import read_samples
from rl_core.runs.evaluation import find_candidate
from rl_core.runtime.home import Home
from schemas.receipts import EvalReceipt
from tests.command import answer
from tests.e2e.conftest import train_here, working_in
from tests.e2e.outcomes import run_folder

pytestmark = pytest.mark.slow


def rows_of(receipt: EvalReceipt) -> list[dict[str, Any]]:
    """Every held-out row with its reply."""
    return read_samples(receipt.samples_path)


@pytest.mark.long
def test_a_version_measures_as_it_was_registered_and_its_export_is_measured_like_any_model(
    undisturbed: Path, tiny_recipe: Path, tmp_path: Path, ray_cluster: None
) -> None:
    from transformers import AutoModelForCausalLM

    from flows.rl_evaluate import rl_evaluate

    (trained,) = (undisturbed / "runs").iterdir()
    registered = EvalReceipt.model_validate_json(
        (trained / "receipts" / "evaluate-final.json").read_text()
    )
    said = answer(undisturbed, "eval", "models:/rl-train-tiny/1")
    assert f"recorded accuracy {registered.accuracy:.3f} on the same rows" in said
    (folder,) = (undisturbed / "evaluations").iterdir()
    again = EvalReceipt.model_validate_json(
        (folder / "receipts" / "evaluate-evaluation.json").read_text()
    )
    assert again.values() == registered.values()
    uri = f"sqlite:///{undisturbed / 'mlflow.db'}"
    run = MlflowClient(uri, uri).get_run(folder.name)
    assert run.info.status == "FINISHED"
    assert run.data.tags["evaluated_model"] == "rl-train-tiny v1"
    assert run.data.metrics["eval/accuracy"] == registered.accuracy
    assert len(list((undisturbed / "runs").iterdir())) == 1, "an evaluation is no training run"

    assert rows_of(again) == rows_of(registered)

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


def test_the_gate_judged_the_very_weights_that_are_registered(
    tiny_recipe: Path,
    tiny_model_dir: Path,
    tmp_path: Path,
    ray_cluster: None,
    prefect_harness: None,
) -> None:
    """In bfloat16 the adapters of a policy are finer than what is stored of them: another model, if
    only just."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from flows.rl_evaluate import rl_evaluate

    home, base = tmp_path / "home", tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.bfloat16).save_pretrained(base)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(base)
    values = yaml.safe_load(tiny_recipe.read_text()) | {
        "model": {"path": str(base)},
        "fsdp": {"param_dtype": "bfloat16"},
        "lora": {"rank": 4, "alpha": 8},
        "optimizer": {"learning_rate": 0.03},
        "training": {"num_iterations": 1, "steps_per_iteration": 3, "prompts_per_step": 8},
    }
    (tmp_path / "bf16.yaml").write_text(yaml.safe_dump(values))
    train_here(tmp_path / "bf16.yaml", home)
    run = run_folder(home)
    judged = EvalReceipt.model_validate_json((run / "receipts" / "evaluate-final.json").read_text())
    with working_in(home):
        again = rl_evaluate("models:/rl-train-tiny/1")
    assert again.values() == judged.values()
    assert rows_of(again) == rows_of(judged)
    assert judged.step == 3
    baseline = EvalReceipt.model_validate_json(
        (run / "receipts" / "evaluate-baseline.json").read_text()
    )
    assert rows_of(baseline) != rows_of(judged), "training changed no reply, so this shows nothing"
