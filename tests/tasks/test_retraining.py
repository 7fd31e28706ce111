"""A retraining as a decision: what is new, what to start from, what to beat, and who becomes
champion."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from rl_core.runs import retraining
from rl_core.runs.session import close_sessions, session_for
from rl_core.runs.versions.champion import incumbent_of
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import champion, promotions
from schemas.receipts import Approval, ModelReceipt
from schemas.sections.registration import Retrain
from tasks.judge_model import judge_model
from tasks.look_for_news import look_for_news
from tasks.prepare_cache import prepare_cache
from tasks.promote_model import promote_model
from tasks.validate_data import validate_data
from tests.made_runs import MadeRun, make_run, recipe_of, register, write_rows

pytestmark = pytest.mark.slow

Values = dict[str, Any]
WRONG, RIGHT = [0.0] * 4, [1.0] * 4
GATE = Approval(given=True)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One home for the module: the first tables of an MLflow database take seconds."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(root))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Home.default()
    close_sessions()


@pytest.fixture(autouse=True)
def revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code stays the same while somebody commits beside the test."""
    monkeypatch.setattr(retraining, "source_revision", lambda: "this revision")


@pytest.fixture
def recipe(
    tmp_path: Path, tiny_model_dir: Path, request: pytest.FixtureRequest
) -> Callable[..., Values]:
    """A recipe of the test's own."""
    name = request.node.originalname.replace("_", "-")
    return lambda **changes: recipe_of(name, tmp_path, tiny_model_dir, **changes)


def news(recipe: Values, retrain: Retrain = Retrain.WHEN_NEW):
    return look_for_news.fn(recipe, prepare_cache.fn(recipe, validate_data.fn(recipe)), retrain)


def decide(made: MadeRun, approval: Approval = GATE) -> ModelReceipt:
    version = register(made)
    return promote_model.fn(
        made.plan, version, judge_model.fn(made.plan, made.baseline, made.final), approval
    )


def test_only_what_is_new_is_trained_again(recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = news(recipe())
    assert (first.train, first.fresh, first.start_from) == (True, False, None)
    assert first.reason.endswith("only-what-is-new-is-trained-again yet")

    version = register(make_run(recipe(), WRONG, RIGHT))
    same = news(recipe())
    assert not same.train
    assert same.reason.startswith(f"nothing new since {version.name} v1 of ")
    assert not news(recipe(placement={"micro_batch_size": 4})).train, "other hardware is no news"
    assert not news(recipe(tracking={"rollouts": "none", "also": ["tensorboard"]})).train
    steps = {"num_iterations": 1, "steps_per_iteration": 2}
    silent = steps | {"on_no_signal": "stop", "no_signal_steps": 3}
    assert not news(recipe(training=silent)).train, "what ends a run changes no step"
    always = news(recipe(), Retrain.ALWAYS)
    assert (always.train, always.fresh) == (True, True)

    other_rate = news(recipe(optimizer={"learning_rate": 3e-4}))
    assert (other_rate.train, other_rate.fresh) == (True, False)
    assert other_rate.reason.startswith("recipe changed since")
    with monkeypatch.context() as patch:
        patch.setattr(retraining, "source_revision", lambda: "another revision")
        other_code = news(recipe())
    assert (other_code.train, other_code.fresh) == (True, True), (
        "the same training, to be done anew"
    )
    assert other_code.reason.startswith("code changed since")
    values = recipe()
    write_rows(tmp_path / "train.jsonl", ["1+2", "2+1", "0+3", "9-6"])
    other_data = news(values)
    assert other_data.train
    assert other_data.reason.startswith("data changed since")


def test_a_registered_model_outlives_a_fresh_start(recipe):
    first = make_run(recipe(), WRONG, RIGHT)
    version = register(first)
    second = make_run(recipe(), WRONG, RIGHT, fresh=True)
    assert Path(version.model_path).is_dir()
    assert second.folder.root.name == f"{first.folder.root.name}.2"
    assert second.plan.mlflow_run_id != first.plan.mlflow_run_id
    continued = make_run(recipe(), WRONG, RIGHT)
    assert continued.plan.mlflow_run_id == second.plan.mlflow_run_id
    assert register(second).version == 2
    assert (
        make_run(recipe(), WRONG, RIGHT, fresh=True).folder.root.name
        == f"{first.folder.root.name}.3"
    )


def test_the_first_version_beats_the_baseline_and_a_worse_one_does_not_beat_it(recipe, home: Home):
    first = decide(make_run(recipe(), WRONG, RIGHT))
    assert (first.promoted, first.gate.compared_with) == (True, "baseline")
    worse = decide(make_run(recipe(seed=1), WRONG, [1.0, 0.0, 0.0, 0.0]))
    assert (worse.version, worse.promoted, worse.gate.compared_with) == (2, False, "champion v1")
    assert "accuracy 0.250 against 1.000 of champion v1" in worse.reason
    present = champion(home.mlflow_uri, first.name)
    assert present is not None and present.version == 1


def test_a_better_one_takes_over_and_a_decision_is_made_once(recipe, home: Home):
    decide(make_run(recipe(), WRONG, [1.0, 0.0, 0.0, 0.0]))
    better = make_run(recipe(seed=1), WRONG, RIGHT)
    done = decide(better)
    assert (done.promoted, done.gate.compared_with) == (True, "champion v1")
    moves = promotions(home.mlflow_uri, done.name)
    assert [(move.version, move.over) for move in moves] == [(1, None), (2, 1)]
    assert moves[1].by == f"gate of run {better.plan.mlflow_run_id}"
    assert decide(better) == done
    (better.folder.root / "receipts" / "promote-model.json").unlink()
    assert decide(better).promoted, "killed between the alias and the receipt"
    assert promotions(home.mlflow_uri, done.name) == moves


def test_a_person_may_refuse_what_the_gate_lets_pass(recipe, home: Home):
    refused = decide(
        make_run(recipe(), WRONG, RIGHT), Approval(given=False, by="ada", reason="refused by ada")
    )
    assert refused.gate.passed and not refused.promoted
    assert refused.reason.endswith("; refused by ada")
    assert champion(home.mlflow_uri, refused.name) is None
    approved = decide(
        make_run(recipe(seed=1), WRONG, RIGHT),
        Approval(given=True, by="ada", reason="approved by ada"),
    )
    assert approved.promoted
    assert promotions(home.mlflow_uri, approved.name)[0].by == "ada"


def test_a_retraining_starts_from_the_champion_and_has_to_beat_it(recipe, home: Home):
    values = recipe(retraining={"start": "champion"})
    assert news(values).start_from is None, "there is no champion yet"
    first = decide(make_run(values, WRONG, [1.0, 0.0, 0.0, 0.0]))
    warm = news(recipe(retraining={"start": "champion"}, seed=1))
    assert warm.start_from == first.model_path
    assert news(values).train is False

    again = make_run(
        recipe(retraining={"start": "champion"}, seed=1),
        [0.0, 1.0, 0.0, 0.0],
        RIGHT,
        start_from=warm.start_from,
    )
    assert again.plan.recipe["model"]["path"] == first.model_path
    incumbent = incumbent_of(again.plan, again.baseline, home)
    assert incumbent.name == "champion v1"
    assert [row["reward"] for row in incumbent.rows] == [0.0, 1.0, 0.0, 0.0], (
        "its baseline is the champion, measured now"
    )
    assert decide(again).promoted
    assert news(recipe(retraining={"start": "champion"}, seed=1)).train is False, (
        "what it started from is no news"
    )


def test_recorded_answers_count_only_when_they_were_scored_alike(
    recipe, home: Home, monkeypatch: pytest.MonkeyPatch
):
    decide(make_run(recipe(), WRONG, [1.0, 0.0, 0.0, 0.0]))
    measured: list[str] = []

    def evaluate_now(plan, present):
        measured.append(present.tags["model_dir"])
        return []

    monkeypatch.setattr("rl_core.runs.versions.champion._evaluated", evaluate_now)
    alike = make_run(recipe(seed=1), WRONG, RIGHT)
    assert [row["reward"] for row in incumbent_of(alike.plan, alike.baseline, home).rows] == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    assert not measured
    more_room = make_run(recipe(evaluation={"max_new_tokens": 99}), WRONG, RIGHT)
    other_rows = make_run(recipe(seed=2), WRONG[:3], RIGHT[:3])
    for made in (more_room, other_rows):
        incumbent_of(made.plan, made.baseline, home)
    assert len(measured) == 2


def test_a_champion_whose_weights_are_gone_is_not_replaced_unseen(recipe, home: Home):
    first = decide(make_run(recipe(), WRONG, [1.0, 0.0, 0.0, 0.0]))
    other = make_run(recipe(evaluation={"max_new_tokens": 99}), WRONG, RIGHT)
    register(other)
    Path(first.model_path).rename(Path(first.model_path).with_name("moved"))
    gate = judge_model.fn(other.plan, other.baseline, other.final)
    assert not gate.passed
    assert "the champion could not be evaluated" in gate.reason
    session_for(other.plan).close()
