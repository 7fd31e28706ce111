"""One process at a time works on a run: two of the same recipe and data would write the same
folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rl_core.data.store.lock import Note, output_lock
from rl_core.runs.run_folder import run_key
from rl_core.runtime.home import Home
from schemas.recipe import Recipe


@contextmanager
def owned_run(
    recipe: Recipe, cache_hash: str, home: Home, note: Note | None = None
) -> Iterator[None]:
    """Own the run of a recipe and its data during the block; waits for the process that owns it.

    The lock is the operating system's and ends with its owner. It covers every folder of the run,
    that of a fresh start too.

    Args: note: is told which process this waits for. Raises: StorageError.
    """
    home.locks.mkdir(parents=True, exist_ok=True)
    lock = home.locks / f"{recipe.name}-{run_key(recipe, cache_hash)[:12]}.lock"
    with output_lock(lock, note):
        yield
