"""Every smoke recipe through the whole flow on a GPU, on tiny models in place of the embedded
ones."""

from pathlib import Path

import pytest
import torch

from flows.rl_train import rl_train
from rl_core.runs.recipes import recipe_names
from schemas.receipts import ModelReceipt
from tests.e2e.conftest import working_in

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("ray_cluster", "prefect_harness"),
]


SMOKE = [name for name in recipe_names() if name.startswith("smoke/")]


@pytest.mark.parametrize("recipe", SMOKE)
def test_a_smoke_recipe_completes(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoke_models: dict[str, str]
) -> None:
    for variable, folder in smoke_models.items():
        monkeypatch.setenv(variable, folder)
    with working_in(tmp_path):
        assert isinstance(rl_train(recipe, profile="one_gpu"), ModelReceipt)
