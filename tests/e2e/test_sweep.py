"""A sweep of two seeds, from the recipes to the page; it touches no champion of the recipe."""

from pathlib import Path

import pytest
import yaml

from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import all_versions
from tests.e2e.conftest import working_in

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_a_sweep_compares_its_runs_on_one_page(
    tiny_recipe: Path, tmp_path: Path, ray_cluster: None
):
    from flows.sweep.flow import rl_sweep

    home, values = tmp_path / "home", yaml.safe_load(tiny_recipe.read_text())
    values["training"] |= {"num_iterations": 1, "steps_per_iteration": 1}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    with working_in(home):
        page = Path(rl_sweep(str(tmp_path / "mine.yaml"), ["seed=1,2"]))
        names = {version.name for version, _ in all_versions(Home.default().mlflow_uri)}
    runs = sorted(path.name for path in (home / "runs").iterdir())
    assert len(runs) == 2
    assert all(run in page.read_text() for run in runs)
    assert names == {f"rl-train-{values['name']}-sweep"}
