"""Every smoke recipe through the whole flow, on tiny models in place of the embedded ones."""

from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from rl_core.runs.recipes import recipe_names
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import run_folder
from tests.e2e.prefect_api import PrefectApi
from tests.e2e.shown import assert_shown

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

HAS_PICTURES = {
    "text": False,
    "vision": True,
    "mpo": False,
    "diffusion": True,
    "pe": True,
    "unified": True,
}


@pytest.fixture(autouse=True)
def tiny_models(monkeypatch: pytest.MonkeyPatch, smoke_models: dict[str, str]) -> None:
    for name, folder in smoke_models.items():
        monkeypatch.setenv(name, folder)


def test_every_smoke_recipe_is_run_here() -> None:
    assert {f"smoke/{name}" for name in HAS_PICTURES} == {
        name for name in recipe_names() if name.startswith("smoke/")
    }


@pytest.mark.parametrize("name", HAS_PICTURES)
def test_a_smoke_recipe_completes_and_shows_what_it_did(name: str, tmp_path: Path) -> None:
    train_here(Path("smoke") / name, tmp_path)
    api = PrefectApi(str(PREFECT_API_URL.value()))
    named = {
        "flow_runs": {"name": {"any_": [f"rl-train smoke/{name}"]}},
        "sort": "START_TIME_DESC",
        "limit": 1,
    }
    (run,) = api.post("flow_runs/filter", named)
    assert_shown(api, run, tmp_path, run_folder(tmp_path), pictures=HAS_PICTURES[name])
