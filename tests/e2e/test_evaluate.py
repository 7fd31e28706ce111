"""`rl-train eval` and `export` of a model that was really trained."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from schemas.receipts import EvalReceipt
from tests.e2e.conftest import DEADLINE_S, REPOSITORY

pytestmark = pytest.mark.slow


def rl_train(home: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "flows.cli", *arguments]
    environment = os.environ | {"RL_TRAIN_HOME": str(home)}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_version_measures_as_it_was_registered_and_its_export_measures_the_same(
    undisturbed: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    (trained,) = (undisturbed / "runs").iterdir()
    registered = EvalReceipt.model_validate_json((trained / "receipts" / "evaluate-final.json").read_text())
    said = rl_train(undisturbed, "eval", "models:/rl-train-tiny/1")
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
    rl_train(undisturbed, "export", "rl-train-tiny", "1", "--to", str(exported))
    assert AutoModelForCausalLM.from_pretrained(exported).num_parameters()
    fewer = yaml.safe_load(tiny_recipe.read_text())
    fewer["data"]["eval"][0]["size"] = 8
    (tmp_path / "fewer.yaml").write_text(yaml.safe_dump(fewer))
    said = rl_train(undisturbed, "eval", str(exported), "--recipe", str(tmp_path / "fewer.yaml"))
    assert "nothing of these rows" in said
