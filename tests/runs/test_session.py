"""A session continues where the last complete checkpoint is, whatever became of its workers.

The trainer of these tests has no workers to start: its weights are the list of the steps that made them, so that a
step that is lost, done twice or done on other weights shows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.errors import WorkerDied
from rl_core.runs import session as module
from rl_core.runs.run_folder import SENTINEL
from rl_core.runs.session import TrainingSession, close_run, close_sessions, session_for
from rl_core.tracking.run import RunStatus
from schemas.receipts import CacheReceipt, IterationReceipt, RunPlan
from schemas.recipe import Recipe

STEPS = 2
ITEMS = [{"uid": f"row-{row}", "prompt": [], "env_extras": {}} for row in range(3)]
Fault = Callable[["StepsTrainer"], None]


class StepsTrainer:
    """Trains by noting its steps; replies with them."""

    held_out_scores = ()
    started: list[StepsTrainer] = []  # noqa: RUF012
    faults: dict[str, Fault] = {}  # noqa: RUF012
    """What to do first in a method, by its name."""

    def __init__(self, recipe: Recipe, source: str, items: Sequence[dict[str, Any]]) -> None:
        self.source, self.items = source, items
        self.weights: list[int] = []
        exported = Path(source, "weights.json")
        if exported.is_file():
            self.weights = json.loads(exported.read_text())
        self.step_count = 0
        self.prepared = self.closed = False
        self.started.append(self)

    def build(self) -> None: ...

    def notes(self) -> list[str]:
        return []

    def pids(self) -> list[int]:
        return [os.getpid()]

    def peak_memory(self) -> int:
        return 10**9

    def prepare(self, held_out: Sequence[dict[str, Any]]) -> None:
        assert not self.weights, "only the model before training can be asked"
        self.prepared = True

    def step(self) -> tuple[dict[str, float], DataProto]:
        self._fail("step")
        self.step_count += 1
        self.weights.append(self.step_count)
        return {"reward_mean": float(self.step_count)}, self._replies()

    def evaluate(self, items: Sequence[dict[str, Any]], max_new_tokens: int) -> DataProto:
        self._fail("evaluate")
        return self._replies()

    def save(self, folder: str) -> None:
        Path(folder, "weights.json").write_text(json.dumps(self.weights))
        self._fail("save")

    def load(self, folder: str) -> None:
        self.weights = json.loads(Path(folder, "weights.json").read_text())

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step_count = state["step"]

    def export(self, folder: str) -> None:
        Path(folder).mkdir()
        Path(folder, "config.json").write_text("{}")
        Path(folder, "weights.json").write_text(json.dumps(self.weights))
        self._fail("export")

    def close(self) -> None:
        self.closed = True

    def _fail(self, method: str) -> None:
        if fault := self.faults.pop(method, None):
            fault(self)

    def _replies(self) -> DataProto:
        count = len(ITEMS)
        return DataProto.from_dict(
            {"rewards": torch.ones(count), "num_tokens": torch.full((count,), 3)},
            {
                "uid": [item["uid"] for item in ITEMS],
                "prompt": [[]] * count,
                "response": [json.dumps(self.weights)] * count,
                "ground_truth": [""] * count,
                "stop_reason": ["eos"] * count,
                "error": [None] * count,
            },
        )


class Notes:
    """What a session tells MLflow."""

    def __init__(self) -> None:
        self.ended: list[RunStatus] = []
        self.metrics: dict[str, list[int]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        for name in metrics:
            self.metrics.setdefault(name, []).append(step)

    def finish(self, status: RunStatus) -> None:
        self.ended.append(status)

    def log_table(self, *_: Any) -> None: ...

    def log_artifact(self, *_: Any) -> None: ...

    def check(self) -> None: ...


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepsTrainer, "started", [])
    monkeypatch.setattr(StepsTrainer, "faults", {})
    monkeypatch.setattr(module, "_trainer_class", lambda _: StepsTrainer)
    monkeypatch.setattr(module, "ray_cluster", lambda *_: nullcontext())


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    model = tmp_path / "model-before"
    model.mkdir()
    (model / "config.json").write_text("{}")
    values = {
        "name": "steps",
        "model": {"path": str(model)},
        "data": {"train": ["unused"], "eval": ["unused"]},
        "training": {"num_iterations": 3, "steps_per_iteration": STEPS, "keep_last": 2},
    }
    cache = CacheReceipt(
        run_hash="", path=str(tmp_path / "cache"), hit=True, explanation="", num_train_rows=3, num_eval_rows=3,
        dropped={}, sources=[], hash_parts={},
    )  # fmt: skip
    recipe = Recipe.model_validate(values).model_dump(mode="json")
    run_dir = str(tmp_path / "run")
    return RunPlan(run_key="key", run_dir=run_dir, recipe=recipe, cache=cache, mlflow_run_id="1", mlflow_url="")


@pytest.fixture
def opened(plan: RunPlan) -> TrainingSession:
    return open_session(plan)


def open_session(plan: RunPlan) -> TrainingSession:
    session = TrainingSession(plan)
    session.folder.create("name: steps\n")
    session._opened = {"train": ITEMS, "eval": ITEMS}
    session._tracking = Notes()  # type: ignore[assignment]
    return session


def steps_of(iteration: int) -> list[int]:
    """What weights after so many iterations are made of."""
    return list(range(1, iteration * STEPS + 1))


def saved(session: TrainingSession, iteration: int) -> list[int]:
    return json.loads((session.folder.checkpoint(iteration) / "weights.json").read_text())


def said(session: TrainingSession, label: str) -> list[int]:
    """The weights that an evaluation was answered with."""
    lines = (session.folder.root / "samples" / f"evaluate-{label}.jsonl").read_text().splitlines()
    (response,) = {json.loads(line)["response"] for line in lines}
    return json.loads(response)


def test_iterations_and_evaluations_share_their_workers(opened: TrainingSession) -> None:
    opened.evaluate("baseline", 0)
    receipts = [opened.train_iteration(iteration) for iteration in (1, 2)]
    opened.evaluate("iteration-2", 2)
    (trainer,) = StepsTrainer.started
    assert trainer.prepared and not trainer.closed
    assert [(one.first_step, one.last_step, one.skipped) for one in receipts] == [(1, 2, False), (3, 4, False)]
    assert (said(opened, "baseline"), said(opened, "iteration-2")) == ([], steps_of(2))
    assert saved(opened, 1) == steps_of(1) and saved(opened, 2) == steps_of(2)
    assert [step["step"] for step in opened.folder.history()] == steps_of(2)
    assert opened.worker_pids() == [os.getpid()]
    opened.close()
    assert trainer.closed and opened.worker_pids() == []


def fail(error: BaseException) -> Fault:
    def raise_it(_: StepsTrainer) -> None:
        raise error

    return raise_it


def in_second_step(trainer: StepsTrainer) -> None:
    trainer.faults["step"] = fail(WorkerDied("gone"))


@pytest.mark.parametrize(
    ("method", "fault", "error"),
    [
        ("step", in_second_step, WorkerDied),
        ("step", fail(KeyboardInterrupt()), KeyboardInterrupt),
        ("save", fail(WorkerDied("gone")), WorkerDied),
    ],
    ids=["worker died", "interrupt", "while a checkpoint was written"],
)
def test_a_retry_gets_new_workers_at_the_last_complete_checkpoint(
    opened: TrainingSession, method: str, fault: Fault, error: type[BaseException]
) -> None:
    opened.train_iteration(1)
    StepsTrainer.faults[method] = fault
    with pytest.raises(error):
        opened.train_iteration(2)
    first = StepsTrainer.started[0]
    assert first.closed and opened.worker_pids() == []
    assert opened.folder.last_complete() == 1
    receipt = opened.train_iteration(2)
    assert (receipt.first_step, receipt.last_step, receipt.skipped) == (3, 4, False)
    assert saved(opened, 2) == steps_of(2)
    assert len(StepsTrainer.started) == 2 and StepsTrainer.started[1].prepared
    assert opened.train_iteration(3).last_step == 6 and len(StepsTrainer.started) == 2


@pytest.mark.parametrize("method", ["evaluate", "export"])
def test_an_error_of_another_task_costs_the_workers_too(opened: TrainingSession, method: str) -> None:
    opened.train_iteration(1)
    StepsTrainer.faults[method] = fail(WorkerDied("gone"))
    with pytest.raises(WorkerDied):
        opened.evaluate("final", 1) if method == "evaluate" else opened.export(1)
    assert StepsTrainer.started[0].closed and opened.worker_pids() == []
    assert not opened.folder.export.exists()
    opened.evaluate("final", 1)
    assert said(opened, "final") == steps_of(1)


def test_what_is_finished_is_not_done_again_and_starts_no_worker(plan: RunPlan, opened: TrainingSession) -> None:
    receipts = [opened.train_iteration(1), opened.train_iteration(2), opened.evaluate("final", 2)]
    again = open_session(plan)
    repeated = [again.train_iteration(1), again.train_iteration(2), again.evaluate("final", 2)]
    assert repeated == [receipt.model_copy(update={"skipped": True}) for receipt in receipts]
    assert len(StepsTrainer.started) == 1


def test_an_iteration_counts_as_done_by_its_checkpoint_and_not_by_its_receipt(
    plan: RunPlan, opened: TrainingSession
) -> None:
    for iteration in (1, 2):
        opened.train_iteration(iteration)
    (opened.folder.checkpoint(2) / SENTINEL).unlink()
    assert opened.folder.receipt("iteration-0002", IterationReceipt) is not None
    again = open_session(plan)
    assert again.train_iteration(1).skipped
    assert not again.train_iteration(2).skipped
    assert saved(again, 2) == steps_of(2) and again.folder.last_complete() == 2


def test_steps_and_receipt_are_there_before_the_checkpoint_is_complete(opened: TrainingSession) -> None:
    def look(_: StepsTrainer) -> None:
        receipt = opened.folder.receipt("iteration-0001", IterationReceipt)
        assert receipt is not None and receipt.metrics["reward_mean"] == 1.5
        assert (opened.folder.root / "steps" / "iteration-0001.jsonl").is_file()

    StepsTrainer.faults["save"] = look
    opened.train_iteration(1)
    assert not StepsTrainer.faults, "it was looked at"


def test_other_weights_than_those_held_are_loaded_in_new_workers(opened: TrainingSession) -> None:
    for iteration in (1, 2):
        opened.train_iteration(iteration)
    opened.evaluate("iteration-1", 1)
    assert said(opened, "iteration-1") == steps_of(1)
    assert [trainer.closed for trainer in StepsTrainer.started] == [True, False]
    opened.train_iteration(3)
    assert saved(opened, 3) == steps_of(3)


def test_an_exported_folder_is_judged_by_workers_that_loaded_it_and_never_trained_on(opened: TrainingSession) -> None:
    opened.train_iteration(1)
    receipt = opened.evaluate("final", 1, exported=True)
    trained, judged = StepsTrainer.started
    assert (judged.source, judged.prepared) == (str(opened.folder.export), False)
    assert trained.closed and said(opened, "final") == steps_of(1)
    assert receipt.step == STEPS
    opened.train_iteration(2)
    assert judged.closed, "its weights have no optimiser"
    assert StepsTrainer.started[2].source != judged.source
    assert saved(opened, 2) == steps_of(2)


def test_an_export_is_on_disk_before_it_has_its_name_and_is_written_once(
    opened: TrainingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []

    def sync(folder: Path) -> None:
        assert not opened.folder.export.exists()
        synced.extend(folder.iterdir())

    monkeypatch.setattr(module, "sync_tree", sync)
    opened.train_iteration(1)
    folder = opened.export(1)
    assert {path.name for path in synced} == {"config.json", "weights.json"}
    opened.train_iteration(2)
    assert opened.export(2) == folder
    assert json.loads((folder / "weights.json").read_text()) == steps_of(1)


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, RunStatus.FINISHED), (WorkerDied("gone"), RunStatus.FAILED), (KeyboardInterrupt(), RunStatus.KILLED)],
    ids=["finished", "failed", "cancelled"],
)
def test_the_mlflow_run_ends_as_the_flow_did(
    plan: RunPlan, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, status: RunStatus
) -> None:
    monkeypatch.setattr(module, "_sessions", {plan.run_dir: open_session(plan)})
    session = session_for(plan)
    session.train_iteration(1)
    with pytest.raises(type(error)) if error else nullcontext(), close_run(plan):
        if error is not None:
            raise error
    assert session.tracking.ended == [status]  # type: ignore[attr-defined]
    close_sessions()
    assert session.worker_pids() == [] and session_for(plan) is not session
