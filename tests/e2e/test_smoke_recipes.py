"""Every smoke recipe trains, on tiny models in place of the embedded ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rl_core.recipes import recipe_names
from rl_core.reporting.metric_catalogue import unknown_metrics
from tests.e2e.conftest import Run
from tests.e2e.outcomes import logged_metrics

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("smoke/")])
def test_a_smoke_recipe_trains(
    name: str,
    start: Callable[..., Run],
    tiny_model_dir: Path,
    tiny_vlm_dir: Path,
    tiny_sd3_dir: Path,
    tiny_unified_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SMOKE_MODEL", str(tiny_model_dir))
    monkeypatch.setenv("SMOKE_VISION_MODEL", str(tiny_vlm_dir))
    monkeypatch.setenv("SMOKE_DIFFUSION_MODEL", str(tiny_sd3_dir))
    monkeypatch.setenv("SMOKE_UNIFIED_MODEL", str(tiny_unified_dir))
    run = start(Path(name), tmp_path / "home")
    assert run.finish() == 0, run.output
    judged = "reward" if name in ("smoke/diffusion", "smoke/pe", "smoke/unified") else "accuracy"
    assert f"evaluate final: {judged}" in run.output
    if name in ("smoke/vision", "smoke/diffusion", "smoke/pe", "smoke/unified"):
        assert list(tmp_path.glob("home/runs/*/samples/pictures-final.png")), "a sheet of sample pictures"
    assert unknown_metrics(logged_metrics(tmp_path / "home")) == [], "describe it in metric_catalogue.py"
    assert f"rl-train-{name.replace('/', '-')} v1, " in run.output and " of baseline" in run.output
