"""Registered models that a recipe's scorers name: `models:/NAME@champion` in `rewards`.

A run is opened with the version that the name stands for, so that its key, its record and every
resumed attempt mean the same weights; workers get that version's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_core.errors import RecipeError, StorageError
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import RegisteredVersion, find_version
from schemas.recipe import Recipe

REGISTERED = "models:/"


def with_fixed_versions(recipe: Recipe, home: Home) -> Recipe:
    """Return the recipe with `models:/NAME/VERSION` in place of aliases in its `rewards`.

    Raises: RecipeError when there is no such version.
    """
    return _changed(recipe, home, lambda found: f"{REGISTERED}{found.name}/{found.version}")


def with_folders(recipe: Recipe, home: Home) -> Recipe:
    """Return the recipe with the folders of registered models in its `rewards`.

    Raises: RecipeError when there is no such version, or its folder is gone.
    """
    return _changed(recipe, home, _folder)


def blocks_with_folders(blocks: Sequence[Mapping[str, Any]], home: Home) -> list[dict[str, Any]]:
    """Return entries of `rewards` as `with_folders` does. Raises: RecipeError."""
    return _changed_blocks(blocks, home, _folder)


def _folder(found: RegisteredVersion) -> str:
    folder = found.tags["model_dir"]
    if not Path(folder).is_dir():
        raise StorageError(
            f"{found.name} v{found.version}: its weights at {folder} are gone; rl-train reproduce"
        )
    return folder


def _changed(recipe: Recipe, home: Home, name: Callable[[RegisteredVersion], str]) -> Recipe:
    rewards = _changed_blocks(recipe.rewards, home, name)
    return recipe if rewards == recipe.rewards else recipe.model_copy(update={"rewards": rewards})


def _changed_blocks(
    blocks: Sequence[Mapping[str, Any]], home: Home, name: Callable[[RegisteredVersion], str]
) -> list[dict[str, Any]]:
    return [
        _with_model(block, f"rewards.{index}.model", home, name)
        for index, block in enumerate(blocks)
    ]


def _with_model(
    block: Mapping[str, Any], key: str, home: Home, name: Callable[[RegisteredVersion], str]
) -> dict[str, Any]:
    model = block.get("model")
    if not isinstance(model, str) or not model.startswith(REGISTERED):
        return dict(block)
    try:
        return {**block, "model": name(find_version(home.mlflow_uri, model))}
    except StorageError as error:
        raise RecipeError(f"{key}: {error}") from error
