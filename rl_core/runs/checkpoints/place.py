"""The place where a run is kept: the home folder, a folder that all nodes see, or an object
store."""

from __future__ import annotations

from pathlib import Path

from rl_core.errors import StorageError
from rl_core.runs.run_folder import RunFolder
from rl_core.runtime.home import Home
from rl_core.runtime.storage import RemoteFolder, parse_storage
from schemas.recipe import Recipe

SETTING = "placement.storage"


def storage_of(recipe: Recipe) -> RemoteFolder | Path | None:
    """Return where the recipe keeps its runs; None for the home folder. Raises: StorageError for a
    place of another kind."""
    if recipe.placement.storage is None:
        return None
    return parse_storage(recipe.placement.storage, SETTING)


def kept_names(recipe: Recipe, first: str, home: Home) -> list[str]:
    """Return the names of the numbered folders of a run, without the first."""
    storage = storage_of(recipe)
    found = {path.name for path in home.runs.glob(f"{first}.*")}
    if isinstance(storage, RemoteFolder):
        found |= {path.partition("/")[0] for path in storage.names(f"{first}.*/run.json")}
    elif storage is not None:
        found |= {path.name for path in storage.glob(f"{first}.*")}
    return sorted(found)


def open_folder(name: str, recipe: Recipe, home: Home) -> RunFolder:
    """Return the folder of that name where the recipe keeps its runs.

    A folder that all nodes see is linked into the home, where every command looks for runs.
    Raises: StorageError when it cannot be made, or the run lies elsewhere already.
    """
    storage, here = storage_of(recipe), home.runs / name
    if storage is None or isinstance(storage, RemoteFolder):
        folder = RunFolder(here.resolve(), None if storage is None else storage / name)
        if storage is None and folder.store is not None:
            raise StorageError(
                f"{here}: the checkpoints of this run lie in {folder.store}; set {SETTING} to "
                f"{str(folder.store).rpartition('/')[0]}, or start anew with --fresh"
            )
        return folder
    there = storage / name
    if here.is_dir() and not here.is_symlink():
        raise StorageError(
            f"{here}: this run lies in the home folder already; move it to {there}, or leave "
            f"{SETTING} out"
        )
    try:
        there.mkdir(parents=True, exist_ok=True)
        here.parent.mkdir(parents=True, exist_ok=True)
        here.unlink(missing_ok=True)
        here.symlink_to(there, target_is_directory=True)
    except OSError as error:
        raise StorageError(f"{SETTING}: {there} cannot be used ({error.strerror})") from error
    return RunFolder(there.resolve())
