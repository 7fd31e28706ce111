"""A run whose rewards never differ ends well, and says in every place where one looks that nothing
was learnt."""

from collections.abc import Callable
from pathlib import Path

from rl_core.runs.observing.learning import FLAT, NOTHING
from rl_core.runs.observing.no_signal import NUM_REPLIES
from tests.e2e.conftest import Run
from tests.e2e.outcomes import run_folder
from tests.e2e.prefect_api import PrefectApi

EQUAL = (
    # A random model earns nothing without partial credit.
    "environments.reasoning_gym.partial_credit=false",
    "training.num_iterations=2",
    "training.steps_per_iteration=1",
)
SILENT = "no signal in steps 1 to 2"
SAID = f"{FLAT}: {NOTHING}"


def test_it_says_so_in_terminal_log_and_report_and_after_a_rerun(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
):
    home = tmp_path / "home"
    run = start(tiny_recipe, home, *EQUAL, "name=nothing-learnt")
    assert run.finish() == 0, run.output
    assert f"train-iteration 1: {SAID}" in run.output
    assert f"warning  {SAID}" in run.output
    report = (run_folder(home) / "report.html").read_text()
    assert SAID in report
    assert f"{SILENT}: every advantage was 0" in run.output
    assert run.output.count("reward 0, truth '") == NUM_REPLIES
    assert SILENT in report
    assert report.count("what the environment read") == 1
    logs = PrefectApi(Run.shared_server["PREFECT_API_URL"]).post(
        "logs/filter", {"sort": "TIMESTAMP_DESC"}
    )
    assert any(SAID in log["message"] for log in logs), "the flow run's log does not have it"

    again = start(tiny_recipe, home, *EQUAL, "name=nothing-learnt")
    assert again.finish() == 0, again.output
    assert f"warning  {SAID}" in again.output


def test_a_recipe_may_have_the_run_stop(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
):
    home = tmp_path / "home"
    run = start(
        tiny_recipe,
        home,
        *EQUAL,
        "name=stops",
        "training.on_no_signal=stop",
        "training.no_signal_steps=1",
    )
    assert run.finish() == 2, run.output
    assert "error: no signal in step 1: every advantage was 0" in run.output
    assert "training.on_no_signal: warn goes on all the same" in run.output
    assert "step 2" not in run.output
