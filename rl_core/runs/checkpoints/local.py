"""Checkpoints of a run in a local folder; one counts only with its sentinel."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_core.data.store.atomic import atomic_write_json, sync_path, sync_tree
from rl_core.errors import StorageError
from rl_core.runs.checkpoints.digests import SENTINEL, damage_of, digests_of


class LocalCheckpoints:
    """Checkpoints below one folder, `iteration-0001` and so on."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def at(self, iteration: int) -> Path:
        """Return the folder of an iteration's checkpoint."""
        return self.root / f"iteration-{iteration:04d}"

    def complete(self) -> list[int]:
        """Return the iterations whose complete checkpoints are there, in order."""
        return sorted(
            int(path.parent.name.split("-")[1])
            for path in self.root.glob(f"iteration-*/{SENTINEL}")
        )

    def damage(self, iteration: int) -> str | None:
        """Return what is wrong with a complete checkpoint; None if it is as it was written."""
        return damage_of(self.at(iteration))

    def set_aside(self, iteration: int) -> str:
        """Rename a checkpoint so that it no longer counts. Returns: its new name."""
        folder = self.at(iteration)
        aside = folder.with_name(f"damaged-{folder.name}-{uuid.uuid4().hex[:8]}")
        os.replace(folder, aside)
        return aside.name

    def trainer_state(self, iteration: int) -> dict[str, Any]:
        """Return the driver's state in a complete checkpoint."""
        return json.loads((self.at(iteration) / "trainer.json").read_text(encoding="utf-8"))

    @contextmanager
    def publish(self, iteration: int, trainer_state: Mapping[str, object]) -> Iterator[Path]:
        """Yield a folder to write into; on exit it is synced, renamed into place and marked
        complete.

        Raises: StorageError when a write fails; then nothing remains that a reader would take for
        complete.
        """
        building = self.root / f".build-{uuid.uuid4().hex[:8]}"
        target = self.at(iteration)
        for leftover in self.root.glob(".build-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        try:
            building.mkdir(parents=True)
            yield building
            atomic_write_json(building / "trainer.json", trainer_state)
            digests = digests_of(building)
            sync_tree(building)
            _remove(target)
            os.replace(building, target)
            sync_path(self.root)
            atomic_write_json(
                target / SENTINEL,
                {"iteration": iteration, "step": trainer_state["step"], "sha256": digests},
            )
        except OSError as error:
            raise StorageError(
                f"checkpoint {target} could not be written ({error.strerror}); free some space "
                "or set RL_TRAIN_HOME to a larger disk, then run again: training continues from "
                "the last complete checkpoint"
            ) from error
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def prune(self, newest: int, keep_last: int, spare: Collection[int]) -> None:
        """Remove all but the newest `keep_last` checkpoints and those of the iterations to
        `spare`."""
        for path in self.root.glob("iteration-*"):
            iteration = int(path.name.split("-")[1])
            if iteration <= newest - keep_last and iteration not in spare:
                _remove(path)


def _remove(folder: Path) -> None:
    # The sentinel goes first, so that a kill in the middle leaves nothing that counts as complete.
    (folder / SENTINEL).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
