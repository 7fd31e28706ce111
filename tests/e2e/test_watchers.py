"""A sick run stops where its recipe asks a watcher to, says so everywhere, loses nothing, and goes
on once the recipe no longer asks."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mlflow import MlflowClient

from flows.cli import STOPPED
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.run import STOPPED_TAG, RunStatus
from tests.e2e.conftest import Run
from tests.e2e.outcomes import run_folder
from tests.e2e.prefect_api import PrefectApi

CONSTANT = (
    # A random model earns nothing without partial credit.
    "environments.reasoning_gym.partial_credit=false",
    "training.num_iterations=3",
    "training.steps_per_iteration=3",
    "name=constant",
)


def test_a_run_of_constant_rewards_stops_and_goes_on(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
):
    home, begun = tmp_path / "home", datetime.now(UTC)
    run = start(tiny_recipe, home, *CONSTANT, "watch.signal=stop", "watch.truncation=off")
    assert run.finish() == STOPPED, run.output
    rang = "watch signal, step 5: 100% of the groups of steps 1 to 5 had equal rewards"
    assert rang in run.output and "; rows: " in run.output
    assert "with the checkpoint of iteration 2; the same command with watch.signal=warn" in (
        run.output
    )
    assert "step   7/9" not in run.output and "Traceback" not in run.output
    folder = RunFolder(run_folder(home))
    assert folder.complete_iterations() == [1, 2]
    assert "Stopped by the watcher signal" in (folder.root / "report.html").read_text()
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    assert folder.mlflow_run_id is not None
    found = client.get_run(folder.mlflow_run_id)
    assert found.info.status == RunStatus.KILLED
    assert "100% of the groups" in found.data.tags[STOPPED_TAG]
    assert _events("rl-train.watch.signal", begun) == [folder.root.name]

    again = start(tiny_recipe, home, *CONSTANT, "watch.signal=stop", "watch.truncation=off")
    assert again.finish() == STOPPED, again.output
    assert "start workers" not in again.output, "nothing is trained to find the same"

    further = start(tiny_recipe, home, *CONSTANT)
    assert further.finish() == 0, further.output
    assert "train-iteration 2: was complete already" in further.output
    assert "watch signal" not in further.output, "what was said is not said again"
    found = client.get_run(folder.mlflow_run_id)
    assert found.info.status == RunStatus.FINISHED
    assert STOPPED_TAG not in found.data.tags
    report = (folder.root / "report.html").read_text()
    assert "<b>signal</b>, steps 5 to 9" in report and "Stopped by" not in report


def _events(name: str, since: datetime) -> list[str]:
    """Return the run of every event of that name."""
    wanted = {
        "event": {"name": [name]},
        "occurred": {"since": since.isoformat(), "until": (since + timedelta(1)).isoformat()},
    }
    api = PrefectApi(Run.shared_server["PREFECT_API_URL"])
    found = api.post("events/filter", {"filter": wanted})["events"]
    return [event["resource"]["rl-train.run"] for event in found]
