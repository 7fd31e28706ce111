"""Every smoke recipe through the whole flow on a GPU, on tiny models in place of the embedded
ones."""

from pathlib import Path

import pytest
import torch

from flows.rl_train import rl_train
from schemas.receipts import ModelReceipt
from tests.e2e.conftest import working_in
from tests.e2e.test_smoke_recipes import HAS_PICTURES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.usefixtures("ray_cluster", "prefect_harness"),
]


@pytest.mark.parametrize("name", HAS_PICTURES)
def test_a_smoke_recipe_completes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smoke_models: dict[str, str]
) -> None:
    for variable, folder in smoke_models.items():
        monkeypatch.setenv(variable, folder)
    with working_in(tmp_path):
        assert isinstance(rl_train(f"smoke/{name}", profile="one_gpu"), ModelReceipt)
