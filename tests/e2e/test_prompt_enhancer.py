"""A prompt enhancer through the whole flow: both models are trained, and kills change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, assert_kills_change_nothing, train_here
from tests.e2e.outcomes import is_trained, logged_metrics, run_folder

pytestmark = [pytest.mark.slow, pytest.mark.long]

RECIPE = Path("smoke/pe")


@pytest.fixture(scope="module")
def overrides(tiny_model_dir: Path, tiny_sd3_dir: Path) -> list[str]:
    """Tiny models in place of the embedded ones, and three iterations of one step."""
    return [
        f"model.path={tiny_model_dir}",
        f"tracks.images.model.path={tiny_sd3_dir}",
        "training.num_iterations=3",
        "training.steps_per_iteration=1",
        "placement.threads_per_device=1",
    ]


@pytest.fixture(scope="module")
def undisturbed_enhancer(
    overrides: list[str], ray_cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The home of a run that nothing disturbed."""
    home = tmp_path_factory.mktemp("undisturbed-enhancer")
    train_here(RECIPE, home, *overrides)
    return home


def test_both_models_are_trained_and_exported(
    undisturbed_enhancer: Path, tiny_model_dir: Path, tiny_sd3_dir: Path
) -> None:
    metrics = logged_metrics(undisturbed_enhancer)
    assert max(metrics["text/grad_norm"]) > 0 < max(metrics["images/grad_norm"])
    exported = run_folder(undisturbed_enhancer) / "model"
    assert is_trained(tiny_model_dir, exported)
    assert is_trained(tiny_sd3_dir, exported / "images")


def test_a_run_whose_worker_and_flow_were_killed_ends_bit_identical(
    overrides: list[str], undisturbed_enhancer: Path, start: Callable[..., Run], tmp_path: Path
) -> None:
    assert_kills_change_nothing(start, RECIPE, tmp_path, undisturbed_enhancer, *overrides)
