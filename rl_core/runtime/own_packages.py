"""Our packages are ours, whatever lies in the folder where a command is given.

A recipe may name a class in a module of the current folder, so that folder is searched for modules too: by a driver
after everything else, by Ray's workers before it. `tasks.py` or `schemas.py` are names that anyone may give a file of
their own, and with an editable installation any folder is searched before our packages.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

OWN = frozenset({"flows", "tasks", "rl_core", "schemas", "deployments", "skyrl_gym"})
_ROOT = str(Path(__file__).resolve().parents[2])


class OwnPackages:
    """Finds our packages where this one lies."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What Python asks of a finder; None lets it ask the next one."""
        return PathFinder.find_spec(name, [_ROOT], target) if name in OWN else None


def find_own_packages_first() -> None:
    """From now on `import tasks` gives our package, whatever else has that name."""
    if OwnPackages not in sys.meta_path:
        sys.meta_path.insert(0, OwnPackages)


def search_users_folders_last() -> None:
    """Search what Ray put before Python's own folders after all others, as a driver does.

    Otherwise `datasets.py` beside a recipe would be what transformers gets for `import datasets`. What `PYTHONPATH`
    names stays where it is.
    """
    wanted = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    before = sys.path[: sys.path.index(os.path.dirname(os.__file__))]
    moved = [folder for folder in before if folder not in wanted and not folder.endswith(".zip")]
    sys.path[:] = [*(folder for folder in sys.path if folder not in moved), *moved]


def hidden_module(name: str) -> tuple[Path, str] | None:
    """A file of the current folder that `import name` does not give, because something else has its name.

    Returns: the file, and where the other one lies; None when nothing is hidden.
    """
    top = name.partition(".")[0]
    places = [Path.cwd() / f"{top}.py", Path.cwd() / top / "__init__.py"]
    there, module = next((place for place in places if place.is_file()), None), sys.modules.get(top)
    if there is None or module is None:
        return None
    given = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "Python itself")
    return None if Path(given).resolve() == there.resolve() else (there, given)
