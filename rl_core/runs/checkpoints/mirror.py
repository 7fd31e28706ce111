"""The small files of a run folder (recipe, receipts, steps, rollouts), kept in its store as well.

A machine that never saw the run fetches them before it goes on.
"""

from __future__ import annotations

from pathlib import Path

from rl_core.runtime.storage import RemoteFolder

NOT_KEPT = (
    "checkpoints",
    "exports",
    "model",
    "iterations",
    "profiles",
    "trackers",
    "mlflow-outbox.jsonl",
)
"""Parts of a run folder that are in the store by other ways, or belong to one machine."""


class Mirror:
    """Copy of a run folder in a store."""

    def __init__(self, local: Path, remote: RemoteFolder) -> None:
        self._local, self._remote = local, remote
        self._sent: dict[str, tuple[int, int]] = {}
        """Size and time of the last change of each file that was sent, by relative path."""

    def send(self) -> None:
        """Store every file that is new or changed. Raises: StorageError, Unreachable."""
        states: dict[str, tuple[int, int]] = {}
        for path in sorted(self._local.rglob("*")):
            name = path.relative_to(self._local).as_posix()
            if not path.is_file() or not _is_kept(name):
                continue
            state = (path.stat().st_size, path.stat().st_mtime_ns)
            if self._sent.get(name) != state:
                states[name] = state
        self._remote.put(self._local, list(states))
        self._sent |= states

    def fetch(self) -> None:
        """Bring the local folder to what the store holds. Pictures and rollouts that are here in
        the same size stay. Raises: StorageError, Unreachable."""
        wanted = []
        for name, stored in self._remote.objects().items():
            path = self._local / name
            large = name.startswith(("rollouts/", "samples/"))
            here = large and path.is_file() and path.stat().st_size == stored.size
            if _is_kept(name) and not here:
                wanted.append(name)
        self._remote.fetch(self._local, wanted)


def _is_kept(name: str) -> bool:
    parts = name.split("/")
    return parts[0] not in NOT_KEPT and not any(part.startswith(".") for part in parts)
