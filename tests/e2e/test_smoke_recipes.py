"""Every smoke recipe trains, on the tiny model in place of the embedded one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rl_core.recipes import recipe_names
from tests.e2e.conftest import Run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("smoke/")])
def test_a_smoke_recipe_trains(
    name: str, start: Callable[..., Run], tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMOKE_MODEL", str(tiny_model_dir))
    run = start(Path(name), tmp_path / "home")
    assert run.finish() == 0, run.output
    assert "evaluate final: accuracy" in run.output
    assert "beats" in run.output or "does not beat" in run.output
