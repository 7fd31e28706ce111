"""One process at a time works on a run: two of the same recipe and data would write the same
folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rl_core.data.store.atomic import storage_error
from rl_core.data.store.lock import Note, output_lock
from rl_core.runs.checkpoints.place import storage_of
from rl_core.runs.run_folder import run_key
from rl_core.runtime.home import Home
from schemas.recipe import Recipe

SHARED_LOCKS = ".locks"
"""Folder beside the runs of a `placement.storage` that several machines see."""


@contextmanager
def owned_run(
    recipe: Recipe, cache_hash: str, home: Home, note: Note | None = None
) -> Iterator[None]:
    """Own the run of a recipe and its data during the block; waits for the process that owns it.

    The lock is the operating system's and ends with its owner. It covers every folder of the run,
    that of a fresh start too. A run that is kept in a shared folder has a second one there, against
    drivers of other homes and machines; in an object store, which has no locks, there is
    `checkpoints.claim` instead.

    Args: note: is told which process this waits for. Raises: StorageError.
    """
    name = f"{recipe.name}-{run_key(recipe, cache_hash)[:12]}.lock"
    folders, storage = [home.locks], storage_of(recipe)
    if isinstance(storage, Path):
        folders.append(storage / SHARED_LOCKS)
    with ExitStack() as held:
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise storage_error(folder, error) from error
            held.enter_context(output_lock(folder / name, note))
        yield
