"""Modules of the user's, which a run brings along to nodes that do not have them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from rl_core.runtime.own_packages import OWN

LARGEST_BYTES = 50 * 2**20
"""Size of a package beyond which it is no source code."""


def modules_to_send(values: object) -> list[str]:
    """Return the files and packages that a recipe's `target`s are in, and their neighbours, which
    they may import.

    What is installed is not among them: the nodes have the same environment. Args: values: the
    recipe as plain values.
    """
    folders: dict[Path, None] = {}
    for target in _targets(values):
        folder = _users_folder(target.partition(":")[0].partition(".")[0])
        if folder is not None:
            folders[folder] = None
    return [str(path) for folder in folders for path in _modules_in(folder)]


def _targets(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        target = value.get("target")
        if isinstance(target, str) and ":" in target:
            yield target
        for one in value.values():
            yield from _targets(one)
    elif isinstance(value, list):
        for one in value:
            yield from _targets(one)


def _users_folder(module: str) -> Path | None:
    """Return the folder that a top-level module of the user's lies in; None for an installed one
    and for one of this project."""
    if module in OWN or module in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None  # the check of the recipe says so
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    if "site-packages" in origin.parts or "dist-packages" in origin.parts:
        return None
    return origin.parent.parent if spec.submodule_search_locations else origin.parent


def _modules_in(folder: Path) -> list[Path]:
    """Return the modules and packages directly in a folder."""
    found = []
    for path in sorted(folder.iterdir()):
        name = path.stem if path.suffix == ".py" else path.name
        if name in OWN or name in ("tests", "setup", "conftest") or not name.isidentifier():
            continue
        if path.suffix == ".py" or ((path / "__init__.py").is_file() and _is_small(path)):
            found.append(path)
    return found


def _is_small(package: Path) -> bool:
    size = 0
    for path in package.rglob("*"):
        size += path.stat().st_size if path.is_file() else 0
        if size > LARGEST_BYTES:
            return False
    return True
