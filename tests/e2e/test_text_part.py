"""A checkpoint that also sees, through the whole flow on rows of text."""

from pathlib import Path

import pytest
import yaml

from rl_core.runs.evaluation import find_candidate
from rl_core.runtime.home import Home
from schemas.receipts import EvalReceipt
from tests.command import answer
from tests.e2e.conftest import train_here, working_in
from tests.models.tiny_seeing import save

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_a_model_that_also_sees_is_trained_on_text_registered_and_measured(
    tiny_recipe: Path, tmp_path: Path, ray_cluster: None
) -> None:
    from transformers import AutoModelForImageTextToText, Gemma3ForConditionalGeneration

    from flows.rl_evaluate import rl_evaluate

    home, recipe = tmp_path / "home", yaml.safe_load(tiny_recipe.read_text())
    recipe |= {"name": "seeing", "model": {"path": str(save("gemma3", tmp_path / "gemma3"))}}
    recipe["training"] |= {"num_iterations": 1, "steps_per_iteration": 2}
    (tmp_path / "seeing.yaml").write_text(yaml.safe_dump(recipe))
    assert (
        "about 0.0"
        in answer(home, "run", str(tmp_path / "seeing.yaml"), "--dry-run").partition("memory")[2]
    )
    train_here(tmp_path / "seeing.yaml", home)
    (trained,) = (home / "runs").iterdir()
    model = AutoModelForImageTextToText.from_pretrained(trained / "model")
    assert type(model) is Gemma3ForConditionalGeneration
    final = EvalReceipt.model_validate_json(
        (trained / "receipts" / "evaluate-final.json").read_text()
    )
    with working_in(home):
        again = rl_evaluate("models:/rl-train-seeing/1")
    assert again.values() == final.values()
    recorded = find_candidate("models:/rl-train-seeing/1", Home(home)).recorded(again)
    assert recorded == final.accuracy, "measured on the same rows"
