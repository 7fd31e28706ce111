"""Relative paths in a recipe file that lies in another folder than the current one.

The rule: a relative path written in a recipe is that of a file beside the recipe, if there is one,
and of the current folder otherwise; an override's is of the current folder, as in any command. The
paths of a recipe are the entries of `data.train`, `data.eval`, `validation.benchmarks` and of each
set's `data`, and the
values of keys named `path`. A name of the Hugging Face hub or of an embedded model is unchanged,
since no such file lies beside the recipe.
"""

import glob
import os
from pathlib import Path
from typing import Any

_SOURCES = (("data", "train"), ("data", "eval"), ("validation", "benchmarks"))


def paths_from_recipe(values: dict[str, object], recipe: Path) -> dict[str, object]:
    """Return a recipe's values as written, with the paths of files beside it made absolute."""
    folder = Path(os.path.abspath(recipe)).parent
    if folder.samefile(Path.cwd()):
        return values
    moved: dict[str, Any] = _moved(values, folder)
    for section, key in _SOURCES:
        block = moved.get(section)
        if isinstance(block, dict) and isinstance(entries := block.get(key), list):
            block[key] = [_beside(entry, folder) for entry in entries]
    evaluation = moved.get("evaluation")
    sets = evaluation.get("sets") if isinstance(evaluation, dict) else None
    for one in sets.values() if isinstance(sets, dict) else ():
        if isinstance(one, dict) and isinstance(entries := one.get("data"), list):
            one["data"] = [_beside(entry, folder) for entry in entries]
    return moved


def _moved(value: object, folder: Path) -> Any:
    """Return a copy in which the values of every key `path` are moved."""
    if isinstance(value, list):
        return [_moved(one, folder) for one in value]
    if not isinstance(value, dict):
        return value
    moved = {}
    for key, one in value.items():
        moved[key] = _beside(one, folder) if key == "path" else _moved(one, folder)
    return moved


def _beside(value: object, folder: Path) -> object:
    """Return the absolute path of a file, folder or glob in `folder`; anything else as it is."""
    if not isinstance(value, str) or not value.strip() or "${" in value or "\0" in value:
        return value
    path = folder / value
    if Path(value).is_absolute() or value.startswith("~"):
        return value
    # `folder:split` names a split of a folder.
    without_split = value.rpartition(":")[0] or value
    if path.exists() or (folder / without_split).exists():
        return str(path)
    if glob.has_magic(value) and glob.glob(value, root_dir=folder, recursive=True):
        return str(Path(glob.escape(str(folder)), value))
    return value
