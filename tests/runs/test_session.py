"""The workers of a run: kept while they are where they are wanted, rebuilt from the last complete
checkpoint else.

They are stood in for by a trainer of one weight, that doubles and adds the step's number: a step
that is lost, done twice or done from other weights gives another weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from mlflow import MlflowClient
from prefect.logging import disable_run_logger

from rl_core.data_proto import DataProto
from rl_core.errors import StorageError
from rl_core.rollout.sample_ids import id_columns
from rl_core.runs.checkpoints.digests import SENTINEL
from rl_core.runs.rollouts.reading import Wanted, select
from rl_core.runs.session import TrainingSession, close_run, close_sessions, session_for
from rl_core.runs.versions.iterations import export_iteration, find_iteration
from rl_core.runtime.home import Home
from rl_core.trainers.step_record import Portion, StepRecord
from schemas.receipts import RunPlan
from tasks.open_run import open_run
from tasks.prepare_cache import prepare_cache
from tasks.validate_data import validate_data
from tests.made_runs import recipe_of
from tests.runs.rollouts.stored import batch

NUM_STEPS = 2
EXPORT = -1
"""In place of a step."""


def weight_after(iteration: int) -> int:
    """Of a training that nothing disturbed."""
    weight = 0
    for step in range(1, NUM_STEPS * iteration + 1):
        weight = 2 * weight + step
    return weight


class OneWeight:
    """What a session asks of a trainer. Args: path: of the model. fails_at: steps, or `EXPORT`;
    each is forgotten."""

    held_out_scores: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: str, fails_at: set[int]) -> None:
        self.path, self.fails_at = path, fails_at
        self.weight = self.step_count = 0
        self.is_open = True

    def prepare(self, held_out: Any) -> None:
        assert (self.weight, self.step_count) == (0, 0), (
            "only the model before training can do this"
        )

    def step(self) -> tuple[dict[str, float], DataProto]:
        assert self.is_open
        self.step_count += 1
        if self.step_count in self.fails_at:
            self.fails_at.remove(self.step_count)
            raise RuntimeError("a worker died")
        self.weight = 2 * self.weight + self.step_count
        rows = batch(["a"], [f"{self.weight} in step {self.step_count}"], [0.5])
        self.record = StepRecord(self.step_count, tracks={"text": [Portion(rows)]})
        return {"reward_mean": float(self.step_count)}, self._said([0.5])

    def evaluate(self, items: Any, max_new_tokens: int) -> DataProto:
        assert self.is_open
        return self._said([float(self.weight)] * len(items))

    def _said(self, rewards: list[float]) -> DataProto:
        uids = [f"row-{row}" for row in range(len(rewards))]
        texts = {
            **id_columns(uids),
            "uid": uids,
            "prompt": [[{"role": "user", "content": "?"}]] * len(rewards),
            **{key: ["x"] * len(rewards) for key in ("response", "ground_truth")},
            "stop_reason": ["eos"] * len(rewards),
            "error": [None] * len(rewards),
        }
        return DataProto.from_dict(
            {"rewards": torch.tensor(rewards), "num_tokens": torch.ones(len(rewards))}, texts
        )

    def save(self, folder: str) -> None:
        Path(folder, "weight").write_text(str(self.weight))

    def load(self, folder: str) -> None:
        self.weight = int(Path(folder, "weight").read_text())

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step_count = state["step"]

    def export(self, folder: str) -> None:
        assert self.is_open
        Path(folder).mkdir()
        Path(folder, "config.json").write_text(
            json.dumps({"weight": self.weight, "from": self.path})
        )
        if EXPORT in self.fails_at:
            self.fails_at.remove(EXPORT)
            raise RuntimeError("a worker died")

    def pids(self) -> list[int]:
        return [1]

    def peak_memory(self) -> int:
        return 10**9

    def close(self) -> None:
        self.is_open = False


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """One home for the module: the first tables of an MLflow database take seconds."""
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Home.default()


@pytest.fixture(scope="module")
def prepared(
    home: Home, tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> tuple[Any, ...]:
    """A recipe, the report on its rows, and what was prepared of them."""
    training = {"num_iterations": 3, "steps_per_iteration": NUM_STEPS, "keep_last": 5}
    recipe = recipe_of(
        "session", tmp_path_factory.mktemp("rows"), tiny_model_dir, training=training
    )
    report = validate_data.fn(recipe)
    return recipe, report, prepare_cache.fn(recipe, report)


@pytest.fixture
def plan(prepared: tuple[Any, ...]) -> Iterator[RunPlan]:
    """A run that nothing was done of yet."""
    yield open_run.fn(*prepared, fresh=True)
    close_sessions()


@pytest.fixture
def fails_at() -> set[int]:
    """Steps at which a worker dies the next time that they are done, and `EXPORT`."""
    return set()


@pytest.fixture
def started(fails_at: set[int], monkeypatch: pytest.MonkeyPatch) -> list[OneWeight]:
    """Every trainer that a session started, in order."""
    trainers: list[OneWeight] = []

    def start(session: TrainingSession, recipe: Any) -> OneWeight:
        trainers.append(OneWeight(recipe.model.path, fails_at))
        return trainers[-1]

    monkeypatch.setattr(TrainingSession, "_start_workers", start)
    return trainers


@pytest.fixture
def session(plan: RunPlan, started: list[OneWeight]) -> Iterator[TrainingSession]:
    opened = TrainingSession(plan)
    yield opened
    opened.close()


def weight_of(session: TrainingSession, iteration: int) -> int:
    return int((session.folder.checkpoint(iteration) / "weight").read_text())


def test_iterations_one_after_the_other_keep_their_workers(
    session: TrainingSession, started: list[OneWeight]
):
    receipts = [session.train_iteration(iteration) for iteration in (1, 2, 3)]
    assert len(started) == 1
    assert [(one.first_step, one.last_step) for one in receipts] == [(1, 2), (3, 4), (5, 6)]
    assert [weight_of(session, iteration) for iteration in (1, 2, 3)] == [
        weight_after(i) for i in (1, 2, 3)
    ]
    session.close()
    assert not started[0].is_open


def test_an_error_ends_the_workers_and_the_next_attempt_goes_on_from_the_last_checkpoint(
    session: TrainingSession, started: list[OneWeight], fails_at: set[int]
):
    fails_at.add(4)
    session.train_iteration(1)
    with pytest.raises(RuntimeError, match="a worker died"):
        session.train_iteration(2)
    assert not started[-1].is_open
    assert session.folder.last_complete() == 1
    assert session.folder.history()[-1]["step"] == 2
    assert session.train_iteration(2).first_step == 3
    session.train_iteration(3)
    assert weight_of(session, 3) == weight_after(3)
    assert [one["step"] for one in session.folder.history()] == [1, 2, 3, 4, 5, 6]


def test_rollouts_of_a_step_that_is_done_again_are_there_once(
    plan: RunPlan, session: TrainingSession, fails_at: set[int]
):
    fails_at.update((2, 4))
    for iteration in (1, 2, 3):
        if iteration < 3:
            with pytest.raises(RuntimeError, match="a worker died"):
                session.train_iteration(iteration)
        session.train_iteration(iteration)
    rows = select(session.folder.rollouts, Wanted())
    assert [row["response"] for row in rows] == [
        f"{weight} in step {step}" for step, weight in enumerate((1, 4, 11, 26, 57, 120), start=1)
    ]


def test_another_process_goes_on_where_the_first_was_killed(
    plan: RunPlan, session: TrainingSession, started: list[OneWeight]
):
    session.train_iteration(1)
    other = TrainingSession(plan)
    done = other.train_iteration(1)
    assert (done.skipped, done.last_step, len(started)) == (True, 2, 1), (
        "what is done is not done again"
    )
    assert other.train_iteration(2).first_step == 3
    assert weight_of(other, 2) == weight_after(2)
    other.close()


def test_an_iteration_without_its_complete_checkpoint_is_done_again(
    plan: RunPlan, session: TrainingSession, started: list[OneWeight]
):
    """Killed between the receipt and the sentinel."""
    session.train_iteration(1)
    session.train_iteration(2)
    (session.folder.checkpoint(2) / SENTINEL).unlink()
    other = TrainingSession(plan)
    again = other.train_iteration(2)
    assert not again.skipped and again.first_step == 3
    assert weight_of(other, 2) == weight_after(2)
    other.close()


@pytest.mark.parametrize("damage", ["flipped bit", "cut", "gone", "sentinel", "trainer.json"])
def test_a_checkpoint_that_changed_on_disk_is_set_aside_and_trained_anew(
    plan: RunPlan,
    session: TrainingSession,
    started: list[OneWeight],
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
):
    for iteration in (1, 2, 3):
        session.train_iteration(iteration)
    folder = session.folder.checkpoint(3)
    path = folder / {"sentinel": SENTINEL, "trainer.json": "trainer.json"}.get(damage, "weight")
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "flipped bit":
        content[0] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: len(content) // 2])
    said: list[str] = []
    monkeypatch.setattr(
        "rl_core.runs.session.announce", lambda event: said.append(event.text) if event.text else 0
    )
    other = TrainingSession(plan)
    assert other.train_iteration(1).skipped and other.train_iteration(2).skipped
    again = other.train_iteration(3)
    assert not again.skipped and weight_of(other, 3) == weight_after(3)
    assert len(said) == 1 and str(path) in said[0] and "continues from iteration 2" in said[0]
    assert [one.name for one in other.folder.checkpoints.glob("damaged-iteration-0003-*")]
    other.close()


def test_a_damaged_checkpoint_is_not_loaded_for_an_evaluation(
    plan: RunPlan, session: TrainingSession, started: list[OneWeight]
):
    for iteration in (1, 2, 3):
        session.train_iteration(iteration)
    path = session.folder.checkpoint(2) / "weight"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    other = TrainingSession(plan)
    with pytest.raises(StorageError, match="checkpoint of iteration 2: the content of"):
        other.evaluate("iteration-2", 2)
    other.evaluate("iteration-3", 3)
    other.close()


def test_a_damaged_receipt_is_named_with_what_to_do(
    plan: RunPlan, session: TrainingSession, started: list[OneWeight]
):
    session.train_iteration(1)
    path = session.folder.root / "receipts" / "iteration-0001.json"
    path.write_text(path.read_text()[:20])
    with pytest.raises(StorageError, match=r"iteration-0001\.json is damaged .* remove it"):
        TrainingSession(plan).train_iteration(1)
    path.unlink()
    assert not TrainingSession(plan).train_iteration(1).skipped


def test_an_evaluation_of_other_weights_than_the_present_ones_rebuilds_the_workers(
    session: TrainingSession, started: list[OneWeight]
):
    session.train_iteration(1)
    session.train_iteration(2)
    before = session.evaluate("baseline", 0)
    assert (before.mean_reward, before.step, len(started)) == (0.0, 0, 2)
    assert not started[0].is_open, "two sets of workers at a time"
    middle = session.evaluate("iteration-1", 1)
    assert (middle.mean_reward, middle.step) == (weight_after(1), 2)
    final = session.evaluate("final", 2)
    assert (final.mean_reward, final.step, len(started)) == (weight_after(2), 4, 4)
    again = session.evaluate("final", 2)
    assert (again.skipped, again.mean_reward, len(started)) == (True, final.mean_reward, 4)


def test_a_teacher_is_scored_by_workers_of_its_own(
    session: TrainingSession, started: list[OneWeight]
):
    teacher = session.recipe.model.path
    session.recipe = session.recipe.model_copy(
        update={"algorithm": {"name": "distillation", "teacher": teacher}}
    )
    assert session.evaluate("teacher", 0).step == 0
    session.train_iteration(1)
    assert [one.is_open for one in started] == [False, True]
    assert session.evaluate("teacher", 0).skipped and len(started) == 2


def test_training_after_an_evaluation_of_the_same_weights_keeps_the_workers(
    session: TrainingSession, started: list[OneWeight]
):
    session.evaluate("baseline", 0)
    session.train_iteration(1)
    session.evaluate("iteration-1", 1)
    session.train_iteration(2)
    assert len(started) == 1
    assert weight_of(session, 2) == weight_after(2)


def test_a_failed_evaluation_leaves_no_workers_and_no_receipt(
    session: TrainingSession, started: list[OneWeight], monkeypatch: pytest.MonkeyPatch
):
    session.train_iteration(1)
    with monkeypatch.context() as patch:
        patch.setattr(OneWeight, "evaluate", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.evaluate("final", 1)
    assert not started[0].is_open
    assert session.evaluate("final", 1).mean_reward == weight_after(1)


def test_an_export_is_written_once_and_whole(session: TrainingSession, fails_at: set[int]):
    session.train_iteration(1)
    fails_at.add(EXPORT)
    with pytest.raises(RuntimeError, match="a worker died"):
        session.export(1)
    assert not session.folder.export.exists(), "half an export would be registered"
    written = session.export(1) / "config.json"
    assert json.loads(written.read_text())["weight"] == weight_after(1)
    stamp = written.stat().st_mtime_ns
    assert session.export(1) / "config.json" == written and written.stat().st_mtime_ns == stamp


def test_an_export_is_on_the_disk_before_it_has_its_name(
    session: TrainingSession, monkeypatch: pytest.MonkeyPatch
):
    synced: list[str] = []

    def sync(folder: Path) -> None:
        assert not session.folder.export.exists(), (
            "after a power cut it would be a model with empty files"
        )
        synced.extend(path.name for path in folder.iterdir())

    monkeypatch.setattr("rl_core.runs.session.sync_tree", sync)
    session.train_iteration(1)
    written = session.export(1)
    assert sorted(synced) == sorted(path.name for path in written.iterdir()) != []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "FINISHED"),
        (ValueError("no"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(1), "KILLED"),
    ],
    ids=["nothing", "an-error", "an-interrupt", "an-exit"],
)
def test_the_mlflow_run_ends_as_the_flow_did(
    plan: RunPlan, home: Home, error: BaseException | None, status: str
) -> None:
    def state() -> str:
        return MlflowClient(home.mlflow_uri).get_run(plan.mlflow_run_id).info.status

    session_for(plan).tracking.log_metrics({"reward_mean": 1.0}, 1)
    assert state() == "RUNNING"
    if error is None:
        with close_run(plan):
            pass
    else:
        with pytest.raises(type(error)), close_run(plan):
            raise error
    assert state() == status
    assert (
        MlflowClient(home.mlflow_uri).get_run(plan.mlflow_run_id).data.metrics["reward_mean"] == 1.0
    )


def test_an_exported_iteration_says_where_it_comes_from(
    session: TrainingSession, home: Home, tmp_path: Path
):
    session.train_iteration(1)
    session.evaluate("iteration-1", 1)
    session.train_iteration(2)
    kept = find_iteration(f"{session.folder.root.name}@1", home)
    assert kept is not None
    written = export_iteration(kept, home, tmp_path / "taken")
    said = json.loads((written / "lineage.json").read_text())
    assert (said["iteration"], said["step"]) == (1, NUM_STEPS)
    assert said["run_id"] == session.plan.mlflow_run_id
    assert said["checkpoint"] == str(session.folder.checkpoint(1))
    assert said["metrics"]["mean_reward"] == weight_after(1)
    assert [one["sha256"] for one in said["cache"]["sources"]] == [
        one.sha256 for one in session.plan.cache.sources
    ]
    assert yaml.safe_load(said["recipe"])["name"] == "session"
