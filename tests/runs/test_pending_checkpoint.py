"""A checkpoint that is written while training goes on counts once every rank is done with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from rl_core.errors import StorageError
from rl_core.runs.checkpoints.pending import PendingCheckpoint
from rl_core.runs.run_folder import RunFolder
from rl_core.trainers.base import Trainer


class Slow:
    """A backend of two ranks, of which one is slow."""

    def __init__(self) -> None:
        self.is_done, self.fails = False, False

    def save_in_background(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)
        Path(folder, "weight").write_text("3")

    def is_saved(self, *, wait: bool) -> list[bool]:
        if self.fails:
            raise StorageError("the disk is full")
        self.is_done = self.is_done or wait
        return [True, self.is_done]


class OfTwo:
    """A trainer of one model, as a checkpoint sees it."""

    def __init__(self) -> None:
        self.backend = Slow()

    def trained_models(self) -> dict[str, Slow]:
        return {"policy": self.backend}

    def save(self, folder: str) -> None:
        self.backend.save_in_background(f"{folder}/policy")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.create("name: one")
    return made


def begun(folder: RunFolder) -> tuple[PendingCheckpoint, Any, dict[str, object]]:
    trainer, state = OfTwo(), {"step": 2, "source": [1]}
    checkpoint = PendingCheckpoint(folder, keep_last=2, last=3, in_background=True)
    checkpoint.write(cast(Trainer, trainer), 1, state, ())
    return checkpoint, trainer, state


def test_it_is_complete_once_every_rank_is_done(folder: RunFolder):
    checkpoint, trainer, state = begun(folder)
    cast(list[int], state["source"]).append(2)  # the next step
    checkpoint.settle()
    assert (folder.last_complete(), checkpoint.iteration) == (0, 1)
    trainer.backend.is_done = True
    checkpoint.settle()
    assert (folder.last_complete(), checkpoint.iteration) == (1, 0)
    assert folder.trainer_state(1) == {"step": 2, "source": [1]}
    assert folder.damage(1) is None


def test_the_next_one_and_the_last_one_wait(folder: RunFolder):
    checkpoint, trainer, _ = begun(folder)
    checkpoint.write(cast(Trainer, trainer), 2, {"step": 4}, ())
    assert folder.complete_iterations() == [1]
    checkpoint.settle(wait=True)
    checkpoint.write(cast(Trainer, trainer), 3, {"step": 6}, ())
    assert folder.complete_iterations() == [2, 3]


def test_what_is_given_up_leaves_nothing(folder: RunFolder):
    checkpoint, _, _ = begun(folder)
    checkpoint.abandon()
    checkpoint.settle(wait=True)
    assert folder.complete_iterations() == []
    assert list(folder.checkpoints.iterdir()) == []


def test_a_write_that_failed_is_told_and_leaves_nothing(folder: RunFolder):
    checkpoint, trainer, _ = begun(folder)
    trainer.backend.fails = True
    with pytest.raises(StorageError, match="the disk is full"):
        checkpoint.settle()
    assert list(folder.checkpoints.iterdir()) == []
    checkpoint.settle(wait=True)
