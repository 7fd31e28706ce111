"""A run whose rewards never differ: it stops where its recipe asks a watcher to, loses nothing and
goes on once the recipe no longer asks, ends well, and says wherever one looks that nothing was
learnt.

One home is watched by all tests. The last command comes while the one before it still trains.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.exit_codes import ExitCode
from rl_core.runs.observing.learning import FLAT, NOTHING
from rl_core.runs.observing.no_signal import NUM_REPLIES
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.run import STOPPED_TAG, RunStatus
from tests.e2e.conftest import Run
from tests.e2e.outcomes import run_folder
from tests.e2e.prefect_api import PrefectApi

pytestmark = [pytest.mark.slow, pytest.mark.long]

CONSTANT = (
    # A random model earns nothing without partial credit.
    "environments.reasoning_gym.partial_credit=false",
    "training.num_iterations=3",
    "training.steps_per_iteration=3",
    "name=constant",
)
STOPS = ("watch.signal=stop", "watch.truncation=off")
SILENT = "no signal in steps 1 to 9"
SAID = f"{FLAT}: {NOTHING}"


@dataclass(frozen=True)
class State:
    """What a run showed of itself after a command had ended."""

    status: str
    tags: dict[str, str]
    """Both in MLflow."""
    iterations: list[int]
    report: str

    @classmethod
    def of(cls, home: Path) -> "State":
        folder = RunFolder(run_folder(home))
        assert folder.mlflow_run_id is not None
        found = MlflowClient(f"sqlite:///{home / 'mlflow.db'}").get_run(folder.mlflow_run_id)
        report = (folder.root / "report.html").read_text()
        return cls(found.info.status, found.data.tags, folder.complete_iterations(), report)


@dataclass(frozen=True)
class Watched:
    """The four commands of the home, and what it showed after the first and the third."""

    home: Path
    begun: datetime
    stopped: Run
    stopped_again: Run
    further: Run
    beside: Run
    at_stop: State
    at_end: State


@pytest.fixture(scope="module")
def watched(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    home, begun, runs = tmp_path_factory.mktemp("constant") / "home", datetime.now(UTC), []

    def start(*overrides: str) -> Run:
        runs.append(Run(tiny_recipe, home, *CONSTANT, *overrides))
        return runs[-1]

    try:
        stopped = start(*STOPS)
        assert stopped.finish() == ExitCode.STOPPED, stopped.output
        at_stop = State.of(home)
        stopped_again = start(*STOPS)
        assert stopped_again.finish() == ExitCode.STOPPED, stopped_again.output
        further = start()
        further.wait_for("train-iteration 2: was complete already")
        beside = start()
        beside.wait_for("waiting for process")
        assert further.finish() == 0, further.output
        assert beside.finish() == 0, beside.output
        yield Watched(home, begun, stopped, stopped_again, further, beside, at_stop, State.of(home))
    finally:
        for run in runs:
            run.close()


def test_a_run_of_constant_rewards_stops_and_goes_on(watched: Watched):
    said, at_stop = watched.stopped.output, watched.at_stop
    assert "watch signal, step 5: 100% of the groups of steps 1 to 5 had equal rewards" in said
    assert "; rows: " in said
    assert "with the checkpoint of iteration 2; the same command with watch.signal=warn" in said
    assert "step   7/9" not in said and "Traceback" not in said
    assert at_stop.iterations == [1, 2]
    assert "Stopped by the watcher signal" in at_stop.report
    assert at_stop.status == RunStatus.KILLED
    assert "100% of the groups" in at_stop.tags[STOPPED_TAG]
    assert _events("rl-train.watch.signal", watched.begun) == [run_folder(watched.home).name]

    assert "start workers" not in watched.stopped_again.output, (
        "nothing is trained to find the same"
    )

    assert "watch signal" not in watched.further.output, "what was said is not said again"
    assert watched.at_end.status == RunStatus.FINISHED
    assert STOPPED_TAG not in watched.at_end.tags
    assert "<b>signal</b>, steps 5 to 9" in watched.at_end.report
    assert "Stopped by" not in watched.at_end.report


def test_it_says_so_in_terminal_log_and_report_and_after_a_rerun(watched: Watched):
    said, report = watched.further.output, watched.at_end.report
    assert f"train-iteration 1: {SAID}" in watched.stopped.output
    assert f"warning  {SAID}" in said
    assert SAID in report
    assert f"{SILENT}: every advantage was 0" in said
    assert said.count("reward 0, truth '") == NUM_REPLIES
    assert SILENT in report
    assert report.count("what the environment read") == 1
    logs = PrefectApi(Run.shared_server["PREFECT_API_URL"]).post(
        "logs/filter", {"sort": "TIMESTAMP_DESC"}
    )
    assert any(SAID in log["message"] for log in logs), "the flow run's log does not have it"
    assert f"warning  {SAID}" in watched.beside.output


def test_a_second_run_of_the_same_recipe_waits_for_the_first_and_finds_it_done(watched: Watched):
    assert "start workers" not in watched.beside.output
    folder = run_folder(watched.home)
    assert (folder / "receipts" / "register-model.json").is_file()
    assert not list(folder.glob("checkpoints/.build-*"))


def _events(name: str, since: datetime) -> list[str]:
    """Return the run of every event of that name."""
    wanted = {
        "event": {"name": [name]},
        "occurred": {"since": since.isoformat(), "until": (since + timedelta(1)).isoformat()},
    }
    api = PrefectApi(Run.shared_server["PREFECT_API_URL"])
    found = api.post("events/filter", {"filter": wanted})["events"]
    return [event["resource"]["rl-train.run"] for event in found]
