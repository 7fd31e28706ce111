"""Every smoke recipe through the whole flow, on tiny models in place of the embedded ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL

from rl_core.runs.recipes import recipe_names
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import run_folder
from tests.e2e.prefect_api import PrefectApi
from tests.e2e.shown import assert_shown
from tests.e2e.test_deployment import DEPLOYED

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

HAS_PICTURES = {
    "mpo": False,
    "reward-model": False,
    "distill": False,
    "judge": False,
    "sft": False,
    "agent": False,
    "selfplay": False,
    "tools": False,
    "pe": True,
    "diffusion": True,
    "unified": True,
}
ELSEWHERE = {
    "text",  # test_rollouts.py
    "flow-sft",  # its parts, in tests/trainers/test_flow_sft.py
}


def test_every_smoke_recipe_is_run() -> None:
    assert {f"smoke/{name}" for name in {*HAS_PICTURES, DEPLOYED, *ELSEWHERE}} == {
        name for name in recipe_names() if name.startswith("smoke/")
    }


@pytest.mark.parametrize("name", HAS_PICTURES)
def test_a_run_completes_and_shows_what_it_did(
    name: str, smoke_models: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable, folder in smoke_models.items():
        monkeypatch.setenv(variable, folder)
    train_here(Path("smoke", name), tmp_path)
    assert_here_shown(f"smoke/{name}", tmp_path, pictures=HAS_PICTURES[name])


def assert_here_shown(recipe: str, home: Path, *, pictures: bool) -> None:
    """Everything, of the one run of a smoke recipe in this process."""
    api = PrefectApi(str(PREFECT_API_URL.value()))
    named = {"flow_runs": {"name": {"any_": [f"rl-train {recipe}"]}}}
    run, *_ = api.post("flow_runs/filter", {**named, "sort": "START_TIME_DESC"})
    assert_shown(api, run, home, run_folder(home), pictures=pictures)
