"""A run whose rewards never differ ends well, and says in every place where one looks that nothing
was learnt."""

from collections.abc import Callable
from pathlib import Path

from rl_core.runs.learning import FLAT, NOTHING
from tests.e2e.conftest import Run
from tests.e2e.outcomes import run_folder
from tests.e2e.prefect_api import PrefectApi

EQUAL = (
    # A random model earns nothing without partial credit.
    "environments.reasoning_gym.partial_credit=false",
    "training.num_iterations=2",
    "training.steps_per_iteration=1",
)
SAID = f"{FLAT}: {NOTHING}"


def test_it_says_so_in_terminal_log_and_report_and_after_a_rerun(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
):
    home = tmp_path / "home"
    run = start(tiny_recipe, home, *EQUAL, "name=nothing-learnt")
    assert run.finish() == 0, run.output
    assert f"train-iteration 1: {SAID}" in run.output
    assert f"warning  {SAID}" in run.output
    assert SAID in (run_folder(home) / "report.html").read_text()
    logs = PrefectApi(Run.shared_server["PREFECT_API_URL"]).post(
        "logs/filter", {"sort": "TIMESTAMP_DESC"}
    )
    assert any(SAID in log["message"] for log in logs), "the flow run's log does not have it"

    again = start(tiny_recipe, home, *EQUAL, "name=nothing-learnt")
    assert again.finish() == 0, again.output
    assert f"warning  {SAID}" in again.output
