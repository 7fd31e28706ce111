"""Starters: small projects that `rl-train init` writes into a folder of the user's.

A starter is a folder of `deployments/starters`, copied as it is; only the project's name is filled
in. So what a user gets is what the tests run. Rows that are not in the folder, such as pictures,
are made by its `make_rows.py`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from rl_core.errors import RecipeError, StorageError
from rl_core.runtime.registry import nearest
from rl_core.runtime.settings_files import DEPLOYMENTS

STARTERS = DEPLOYMENTS / "starters"
DEFAULT = "own"
ROWS = "rows"
PLACEHOLDER = "__project__"
"""Text in a starter's files that stands for the name of the project."""
_NO_PART_OF_A_NAME = re.compile(r"[^a-z0-9]+")


def starter_names() -> list[str]:
    """Return the names of the starters."""
    return sorted(path.parent.name for path in STARTERS.glob("*/recipe.yaml"))


def write_starter(name: str, folder: Path) -> list[Path]:
    """Write a starter into a new or empty folder.

    What is hidden in the folder, such as `.git`, stays. Returns: the files, relative to the folder.
    Raises: RecipeError naming the nearest starter, or when the folder's name cannot name a recipe;
    StorageError when something is in the folder.
    """
    if name not in starter_names():
        raise RecipeError(
            f"unknown starter {name!r}{nearest(name, starter_names())}; there are "
            f"{', '.join(starter_names())}"
        )
    # Without following links, which may lead around in a ring.
    name_of_folder = Path(os.path.abspath(folder)).name
    project = _NO_PART_OF_A_NAME.sub("-", name_of_folder.lower()).strip("-")
    if not project:
        raise RecipeError(
            f"{folder}: a project is named by its folder, and this name has no letter or digit"
        )
    if folder.exists() and not (folder.is_dir() and _is_empty(folder)):
        raise StorageError(f"{folder} is not an empty folder; name a new one")
    try:
        written = _copy(STARTERS / name, folder, project)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written ({error.strerror})") from error
    if not (folder / ROWS).is_dir():
        _make_rows(folder)
        written.append(Path(ROWS))
    return written


def _is_empty(folder: Path) -> bool:
    return all(path.name.startswith(".") for path in folder.iterdir())


def _copy(starter: Path, folder: Path, project: str) -> list[Path]:
    written: list[Path] = []
    for source in sorted(starter.rglob("*")):
        if not source.is_file() or "__pycache__" in source.parts:
            continue
        relative = source.relative_to(starter)
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8").replace(PLACEHOLDER, project)
        target.write_text(text, encoding="utf-8")
        written.append(relative)
    return written


def _make_rows(folder: Path) -> None:
    command = [sys.executable, "make_rows.py"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if made.returncode != 0:
        said = (made.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise StorageError(f"{folder / 'make_rows.py'}: {said}")
