"""A checkpoint that also sees, through the whole flow on rows of text."""

from pathlib import Path

import pytest
import yaml

from schemas.receipts import EvalReceipt
from tests.command import answer
from tests.models.tiny_seeing import save

pytestmark = pytest.mark.slow


def test_a_model_that_also_sees_is_trained_on_text_registered_and_measured(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForImageTextToText, Gemma3ForConditionalGeneration

    home, recipe = tmp_path / "home", yaml.safe_load(tiny_recipe.read_text())
    recipe |= {"name": "seeing", "model": {"path": str(save("gemma3", tmp_path / "gemma3"))}}
    recipe["training"] |= {"num_iterations": 1, "steps_per_iteration": 2}
    (tmp_path / "seeing.yaml").write_text(yaml.safe_dump(recipe))
    assert (
        "about 0.0"
        in answer(home, "run", str(tmp_path / "seeing.yaml"), "--dry-run").partition("memory")[2]
    )
    answer(home, "run", str(tmp_path / "seeing.yaml"))
    (trained,) = (home / "runs").iterdir()
    model = AutoModelForImageTextToText.from_pretrained(trained / "model")
    assert type(model) is Gemma3ForConditionalGeneration
    final = EvalReceipt.model_validate_json(
        (trained / "receipts" / "evaluate-final.json").read_text()
    )
    said = answer(home, "eval", "models:/rl-train-seeing/1")
    assert f"recorded accuracy {final.accuracy:.3f} on the same rows" in said
