"""Imports of this project's packages, even if the working directory has modules of the same names.

A recipe may name a class in a module of the working directory, so that directory is searched for
modules too: by a driver after everything else, by Ray's workers before it. Anyone may have files
named `tasks.py` or `schemas.py`, and with an editable installation any folder is searched before
this project's packages.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

OWN = frozenset({"flows", "tasks", "rl_core", "schemas", "deployments", "skyrl_gym", "skyrl_train"})
FOLDERS = "RECIPE_MODULE_FOLDERS"
"""Environment variable by which workers learn of the folders of recipes."""
_ROOT = str(Path(__file__).resolve().parents[2])


class OwnPackages:
    """Import finder that finds this project's packages in their own folder."""

    @staticmethod
    def find_spec(
        name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module, as Python's import system asks; None passes to the next
        finder."""
        if name in OWN:
            return PathFinder.find_spec(name, [_ROOT], target)
        return None


def find_own_packages_first() -> None:
    """Make `import tasks` and the like always import this project's packages."""
    if OwnPackages not in sys.meta_path:
        sys.meta_path.insert(0, OwnPackages)


def search_beside(recipe: Path) -> None:
    """Search the folder of a recipe for modules too, after everything else: in this process, and in
    those that it starts from now on."""
    folder = str(recipe.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    if folder not in (known := _recipe_folders()):
        os.environ[FOLDERS] = os.pathsep.join([*known, folder])


def _recipe_folders() -> list[str]:
    return [folder for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def search_users_folders_last() -> None:
    """Move the folders that Ray put before Python's own to the end of the search path, as in a
    driver, and add those of recipes.

    Otherwise a `datasets.py` next to a recipe would be imported by transformers as `datasets`.
    Folders in `PYTHONPATH` keep their place.
    """
    wanted = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    before = sys.path[: sys.path.index(os.path.dirname(os.__file__))]
    moved = []
    for folder in before:
        if folder not in wanted and not folder.endswith(".zip"):
            moved.append(folder)
    sys.path[:] = [*(folder for folder in sys.path if folder not in moved), *moved]
    sys.path += [folder for folder in _recipe_folders() if folder not in sys.path]


def hidden_module(name: str) -> tuple[Path, str] | None:
    """Find a file of the working directory, or beside a recipe, that `import name` does not reach,
    because another module has its name.

    Returns: the file, and the path of the other module; None if nothing is hidden.
    """
    top = name.partition(".")[0]
    folders = [Path.cwd(), *map(Path, _recipe_folders())]
    places = [folder / name for folder in folders for name in (f"{top}.py", f"{top}/__init__.py")]
    there, module = next((place for place in places if place.is_file()), None), sys.modules.get(top)
    if there is None or module is None:
        return None
    given = getattr(module, "__file__", None) or next(
        iter(getattr(module, "__path__", [])), "Python itself"
    )
    if Path(given).resolve() == there.resolve():
        return None
    return (there, given)
