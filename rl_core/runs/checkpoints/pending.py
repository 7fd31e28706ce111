"""A run's checkpoint on its way: begun at the end of an iteration, published once every rank has
written its part."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from rl_core.errors import RLTrainError

if TYPE_CHECKING:
    from rl_core.runs.run_folder import RunFolder
    from rl_core.trainers.base import Trainer
    from schemas.recipe import Recipe


class Abandoned(RLTrainError):
    """A checkpoint that was not finished; nothing of it counts."""


class PendingCheckpoint:
    """Writes the checkpoints of one run. With `in_background`, training goes on meanwhile, and a
    run that ends before the sentinel continues from the checkpoint before."""

    def __init__(
        self, folder: RunFolder, *, keep_last: int, last: int, in_background: bool
    ) -> None:
        self._folder, self._keep_last = folder, keep_last
        self._last, self._in_background = last, in_background
        self.iteration = 0
        """Iteration whose checkpoint is being written; 0 if none is."""
        self._trainer: Trainer | None = None
        self._published = ExitStack()

    @classmethod
    def of(cls, folder: RunFolder, recipe: Recipe) -> PendingCheckpoint:
        """Return the writer of a run's checkpoints."""
        training = recipe.training
        return cls(
            folder,
            keep_last=training.keep_last,
            last=training.num_iterations,
            in_background=training.checkpoints_in_background,
        )

    def write(
        self,
        trainer: Trainer,
        iteration: int,
        state: Mapping[str, object],
        best: Collection[int],
    ) -> None:
        """Write the checkpoint of an iteration, or begin to. Args: state: the driver's. best:
        iterations whose checkpoints are kept. Raises: StorageError when a write fails."""
        self.settle(wait=True)
        # The driver's state changes with the next step.
        state = copy.deepcopy(dict(state))
        publishing = self._folder.publish_checkpoint(iteration, state, self._keep_last, best)
        with ExitStack() as stack:
            building = stack.enter_context(publishing)
            if not self._in_background or iteration == self._last:
                trainer.save(str(building))
                return
            for name, backend in trainer.trained_models().items():
                backend.save_in_background(f"{building}/{name}")
            self._trainer, self._published = trainer, stack.pop_all()
            self.iteration = iteration

    def settle(self, *, wait: bool = False) -> None:
        """Publish the checkpoint that is being written, if every rank is done. Args: wait: until
        they are. Raises: StorageError when a write failed."""
        trainer, self._trainer = self._trainer, None
        iteration, self.iteration = self.iteration, 0
        if trainer is None:
            return
        with self._published as published:
            backends = trainer.trained_models().values()
            are_done = [all(backend.is_saved(wait=wait)) for backend in backends]
            if not all(are_done):
                self._trainer, self._published = trainer, published.pop_all()
                self.iteration = iteration

    def abandon(self) -> None:
        """Give up the checkpoint that is being written, since its workers may be gone."""
        if self._trainer is None:
            return
        self._trainer, self.iteration = None, 0
        try:
            with self._published:
                raise Abandoned("the checkpoint was given up with its workers")
        except Abandoned:
            return
