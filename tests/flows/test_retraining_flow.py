"""The flow's own decisions, against a Prefect server: nothing to learn ends at once, and a person
is asked."""

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import yaml
from prefect import flow
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext
from prefect.flow_runs import resume_flow_run
from prefect.settings import PREFECT_API_URL

from flows.approval import ask_for_approval, question
from flows.rl_train import rl_train, usual_retrain
from rl_core.runs.session import close_sessions
from rl_core.runtime.home import Home
from schemas.receipts import Approval, GateReceipt, ScoreChange, VersionReceipt
from schemas.sections.registration import RegistrationConfig, Retrain
from tests.e2e.prefect_api import PrefectApi, wait_until
from tests.made_runs import make_run, recipe_of, register

PATIENCE_S = 120
VERSION = VersionReceipt(name="rl-train-x", version=2, model_path="model")
DECIDED = ScoreChange(score="accuracy", before=0.5, after=0.75, low=0.1, high=0.4, confidence=0.98)
GATE = GateReceipt(
    compared_with="champion v1",
    decided_by=DECIDED,
    guards=[],
    margin=0,
    confidence=0.9,
    passed=True,
    reason="better",
)


@pytest.fixture
def home(tmp_path: Path, prefect_harness: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, value in Home.default().environment().items():
        monkeypatch.setenv(name, value)  # the flow exports them, and they end with the test
    monkeypatch.setattr("rl_core.runs.retraining.source_revision", lambda: "this revision")
    yield Home.default()
    close_sessions()


@pytest.mark.slow
def test_a_run_with_nothing_new_ends_at_once_saying_so(
    home: Home, tmp_path: Path, tiny_model_dir: Path
):
    recipe = recipe_of("nothing-new", tmp_path, tiny_model_dir)
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    version = register(make_run(recipe, [0.0] * 4, [1.0] * 4))
    state = rl_train(str(path), retrain=Retrain.WHEN_NEW, return_state=True)
    assert state.is_completed()
    assert state.name == "NothingNew"
    assert state.message is not None
    assert state.message.startswith(f"nothing new since {version.name} v1")
    assert len(list(home.runs.iterdir())) == 1


@pytest.mark.parametrize(
    ("scheduled", "does"), [(True, Retrain.WHEN_NEW), (False, Retrain.CONTINUE)]
)
def test_only_a_scheduled_run_looks_for_news_unasked(scheduled: bool, does: Retrain) -> None:
    run = FlowRun(flow_id=uuid4(), auto_scheduled=scheduled)
    with FlowRunContext.model_construct(flow_run=run):
        assert usual_retrain() is does
    assert usual_retrain() is Retrain.CONTINUE, "outside a run"


@flow
def asks() -> Approval:
    """A flow that asks as `rl-train` does."""
    return ask_for_approval(RegistrationConfig(approval=True), VERSION, GATE)


def paused_run() -> UUID:
    """The id of the flow run that waits."""
    api = PrefectApi(str(PREFECT_API_URL.value()))
    paused = {"flow_runs": {"state": {"type": {"any_": ["PAUSED"]}}}}
    (run,) = wait_until(
        lambda: api.post("flow_runs/filter", paused), "a run that waits", PATIENCE_S
    )
    return UUID(run["id"])


@pytest.mark.parametrize(("promote", "verb"), [(True, "approved"), (False, "refused")])
def test_a_person_decides(
    promote: bool, verb: str, prefect_harness: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "a deployment")
    monkeypatch.setattr("flows.approval.POLL_S", 1)
    said: list[Approval] = []
    waiting = threading.Thread(target=lambda: said.append(asks()))
    waiting.start()
    answer = {"promote": promote, "reason": "looks right", "your_name": "ada"}
    resume_flow_run(paused_run(), run_input=answer)
    waiting.join(PATIENCE_S)
    assert said == [Approval(given=promote, by="ada", reason=f"{verb} by ada: looks right")]


def test_nobody_is_asked_in_vain():
    asked = RegistrationConfig(approval=True)
    assert ask_for_approval(RegistrationConfig(), VERSION, GATE) == Approval(given=True)
    assert ask_for_approval(asked, VERSION, GATE.model_copy(update={"passed": False})) == Approval(
        given=True
    )
    assert ask_for_approval(asked, VERSION, GATE, decided=True) == Approval(given=True), (
        "a run decides once"
    )
    alone = ask_for_approval(asked, VERSION, GATE)
    assert (alone.given, alone.reason) == (False, "awaits approval: rl-train promote rl-train-x 2")


def test_the_question_shows_the_comparison():
    text = question(VERSION, GATE)
    assert "Make **rl-train-x v2** the champion in place of champion v1?" in text
    assert "| accuracy | 0.500 | 0.750 | +0.250 | +0.100 to +0.400 |" in text
