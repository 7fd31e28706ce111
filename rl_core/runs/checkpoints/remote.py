"""Checkpoints of a run in an object store, which every node reaches though they share no disk.

Nothing can be renamed there, so each attempt writes into a folder of its own name,
`iteration-0001.<attempt>`: a rank that is cut off and goes on writing spoils nobody else's. The
sentinel comes last and holds the store's own version of every object.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rl_core.errors import StorageError, Unreachable
from rl_core.runs.checkpoints.claim import Claim
from rl_core.runs.checkpoints.digests import SENTINEL
from rl_core.runtime.storage import RemoteFolder

_STATE = "trainer.json"


class RemoteCheckpoints:
    """Checkpoints below one folder of a store. Raises StorageError or Unreachable when the store
    refuses or does not answer."""

    def __init__(self, root: RemoteFolder, claim: Claim) -> None:
        """Args: claim: is checked before a checkpoint is marked complete."""
        self.root, self._claim = root, claim

    def at(self, iteration: int) -> RemoteFolder:
        """Return the folder of an iteration's complete checkpoint."""
        attempts = self._complete().get(iteration)
        if attempts is None:
            raise StorageError(f"{self.root}: there is no checkpoint of iteration {iteration}")
        return self.root / attempts

    def complete(self) -> list[int]:
        """Return the iterations whose complete checkpoints are there, in order."""
        return sorted(self._complete())

    def damage(self, iteration: int) -> str | None:
        """Return what is wrong with a complete checkpoint; None if the store holds the objects that
        were written."""
        folder = self.at(iteration)
        try:
            recorded = json.loads(folder.read(SENTINEL))["objects"]
        except (ValueError, KeyError, TypeError) as error:
            return f"{folder}/{SENTINEL} cannot be read ({error})"
        found = _described(folder)
        for name, said in recorded.items():
            if name not in found:
                return f"{folder}/{name} is missing"
            if found[name] != said:
                return f"the content of {folder}/{name} has changed since it was written"
        return None

    def set_aside(self, iteration: int) -> str:
        """Take the sentinel away, so that a checkpoint no longer counts. Returns: its name."""
        folder = self.at(iteration)
        folder.remove(SENTINEL)
        return folder.name

    def trainer_state(self, iteration: int) -> dict[str, Any]:
        """Return the driver's state in a complete checkpoint."""
        return json.loads(self.at(iteration).read(_STATE))

    @contextmanager
    def publish(
        self, iteration: int, trainer_state: Mapping[str, object]
    ) -> Iterator[RemoteFolder]:
        """Yield a folder to write into; on exit it is marked complete, and other attempts at the
        iteration are removed. Raises: StorageError also when another driver took the run."""
        folder = self.root / f"iteration-{iteration:04d}.{uuid.uuid4().hex[:8]}"
        try:
            yield folder
            folder.write(_STATE, json.dumps(trainer_state).encode())
            said = {"iteration": iteration, "step": trainer_state["step"]}
            said |= {"objects": _described(folder)}
            # After the list: a driver that came since then may have removed some of it.
            self._claim.check()
            folder.write(SENTINEL, json.dumps(said).encode())
        except BaseException:
            _try_to_remove(folder)
            raise
        for name in self._attempts(iteration):
            if name != folder.name:
                self._remove(name)

    def prune(self, newest: int, keep_last: int, spare: Collection[int]) -> None:
        """Remove all but the newest `keep_last` checkpoints and those of the iterations to
        `spare`."""
        for iteration, name in self._complete().items():
            if iteration <= newest - keep_last and iteration not in spare:
                self._remove(name)

    def _complete(self) -> dict[int, str]:
        """Return the folder name of every complete checkpoint, by iteration."""
        names = [path.partition("/")[0] for path in self.root.names(f"iteration-*/{SENTINEL}")]
        return {_iteration(name): name for name in names}

    def _attempts(self, iteration: int) -> set[str]:
        objects = self.root.objects()
        names = {path.partition("/")[0] for path in objects if path.startswith("iteration-")}
        return {name for name in names if _iteration(name) == iteration}

    def _remove(self, name: str) -> None:
        # The sentinel goes first, so that a kill in the middle leaves nothing that counts.
        (self.root / name).remove(SENTINEL)
        self.root.remove(name)


def _iteration(name: str) -> int:
    return int(name.split("-")[1].partition(".")[0])


def _described(folder: RemoteFolder) -> dict[str, list[object]]:
    """Return size and version of every object of a checkpoint but its sentinel."""
    objects = folder.objects().items()
    return {name: [one.size, one.version] for name, one in objects if name != SENTINEL}


def _try_to_remove(folder: RemoteFolder) -> None:
    """Remove what a failed attempt wrote; what stays has no sentinel, and goes with the next."""
    try:
        folder.remove()
    except (StorageError, Unreachable):
        return
