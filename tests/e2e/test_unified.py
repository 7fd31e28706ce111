"""A unified model through the whole flow: both stages learn in one step, and kills change
nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Run, assert_kills_change_nothing, train_here
from tests.e2e.outcomes import logged_metrics, run_folder

pytestmark = [pytest.mark.slow, pytest.mark.long]

RECIPE = Path("smoke/unified")


@pytest.fixture(scope="module")
def overrides(tiny_unified_dir: Path) -> list[str]:
    """The model before its warm-up, and three iterations of one step."""
    return [
        f"model.path={tiny_unified_dir}",
        "training.num_iterations=3",
        "training.steps_per_iteration=1",
        "placement.threads_per_device=1",
    ]


@pytest.fixture(scope="module")
def undisturbed_model(
    overrides: list[str], ray_cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The home of a run that nothing disturbed."""
    home = tmp_path_factory.mktemp("undisturbed-unified")
    train_here(RECIPE, home, *overrides)
    return home


def test_both_stages_are_measured_and_the_whole_model_is_exported(undisturbed_model: Path) -> None:
    metrics = logged_metrics(undisturbed_model)
    assert max(metrics["text/grad_norm"]) > 0 < max(metrics["images/grad_norm"])
    exported = run_folder(undisturbed_model) / "model"
    assert {path.name for path in exported.iterdir()} >= {
        "model_index.json",
        "decoder",
        "transformer",
        "vae",
    }


def test_a_run_whose_worker_and_flow_were_killed_ends_bit_identical(
    overrides: list[str], undisturbed_model: Path, start: Callable[..., Run], tmp_path: Path
) -> None:
    assert_kills_change_nothing(start, RECIPE, tmp_path, undisturbed_model, *overrides)
