"""A session whose checkpoints are written while training goes on loses no more than the last one.

Its trainer and its run are those of `test_session`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_core.runs.session import TrainingSession
from schemas.receipts import RunPlan
from tests.runs import test_session as usual
from tests.runs.test_session import OneWeight, weight_after, weight_of

home, prepared, plan = usual.home, usual.prepared, usual.plan
fails_at, started = usual.fails_at, usual.started


class Late:
    """A backend that has written its checkpoint as soon as it is asked to wait."""

    def __init__(self, trainer: OneWeight) -> None:
        self.trainer = trainer

    def save_in_background(self, folder: str) -> None:
        self.trainer.save(str(Path(folder).parent))

    def is_saved(self, *, wait: bool) -> list[bool]:
        return [wait]


def models_of(trainer: OneWeight) -> dict[str, Late]:
    return {"policy": Late(trainer)}


def test_checkpoints_in_the_background_keep_the_workers_and_are_made_up_for_when_lost(
    plan: RunPlan, started: list[OneWeight], fails_at: set[int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(OneWeight, "trained_models", models_of, raising=False)
    plan.recipe["training"]["checkpoints_in_background"] = True
    session = TrainingSession(plan)
    session.train_iteration(1)
    assert session.folder.last_complete() == 0
    session.train_iteration(2)
    assert (session.folder.last_complete(), len(started)) == (1, 1)
    fails_at.add(5)
    with pytest.raises(RuntimeError, match="a worker died"):
        session.train_iteration(3)
    # The second iteration went with its workers; the retry trains it again.
    assert session.folder.last_complete() == 1
    session.train_iteration(3)
    assert session.folder.complete_iterations() == [1, 2, 3]
    assert [weight_of(session, i) for i in (1, 2, 3)] == [weight_after(i) for i in (1, 2, 3)]
    session.close()
