"""Registered models that a recipe's scorers, judges, teachers and seats name:
`models:/NAME@champion` in `rewards`, `algorithm` and `environments`.

A run is opened with the version that the name stands for, so that its key, its record and every
resumed attempt mean the same weights; workers get that version's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_core.envs.seats import with_players
from rl_core.errors import RecipeError, StorageError
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import RegisteredVersion, find_version
from rl_core.tracking.stored_weights import weights_here
from schemas.recipe import Recipe

REGISTERED = "models:/"


def with_fixed_versions(recipe: Recipe, home: Home) -> Recipe:
    """Return the recipe with `models:/NAME/VERSION` in place of aliases in its `rewards` and
    seats, and of its teachers.

    Raises: RecipeError when there is no such version.
    """
    return _with_fixed_teachers(_changed(recipe, home, _version), home)


def with_folders(recipe: Recipe, home: Home) -> Recipe:
    """Return the recipe with the folders of registered models in its `rewards` and seats.

    Raises: RecipeError when there is no such version, or its folder is gone.
    """
    return _changed(recipe, home, _folder)


def blocks_with_folders(blocks: Sequence[Mapping[str, Any]], home: Home) -> list[dict[str, Any]]:
    """Return entries of `rewards` as `with_folders` does. Raises: RecipeError."""
    return _changed_blocks(blocks, home, _folder)


def _with_fixed_teachers(recipe: Recipe, home: Home) -> Recipe:
    """Return the recipe with the versions that its teachers' names stand for."""
    block: dict[str, Any] = dict(recipe.algorithm)
    if "teacher" in block:
        block["teacher"] = _fixed_teacher(block["teacher"], "algorithm.teacher", home)
    if isinstance(teachers := block.get("teachers"), Mapping):
        block["teachers"] = {
            source: _fixed_teacher(teacher, f"algorithm.teachers.{source}", home)
            for source, teacher in teachers.items()
        }
    same = block == recipe.algorithm
    if same:
        return recipe
    return recipe.model_copy(update={"algorithm": block})


def _fixed_teacher(teacher: Any, key: str, home: Home) -> Any:
    """Return a teacher, a path or a block, with the version of a registered model."""
    if isinstance(teacher, Mapping):
        path = _resolved(teacher.get("path"), f"{key}.path", home, _version)
        return dict(teacher) | ({} if path is None else {"path": path})
    return _resolved(teacher, key, home, _version)


def _version(found: RegisteredVersion) -> str:
    return f"{REGISTERED}{found.name}/{found.version}"


def _folder(found: RegisteredVersion) -> str:
    home = Home.default()
    folder = weights_here(found, home.mlflow_uri, home.models)
    if not Path(folder).is_dir():
        raise StorageError(
            f"{found.name} v{found.version}: its weights at {folder} are gone; rl-train reproduce"
        )
    return folder


def _changed(recipe: Recipe, home: Home, name: Callable[[RegisteredVersion], str]) -> Recipe:
    rewards = _changed_blocks(recipe.rewards, home, name)

    def played(where: str, player: object) -> object:
        return _resolved(player, f"environments.{where}", home, name)

    environments = with_players(recipe.environments, played)
    if rewards == recipe.rewards and environments == recipe.environments:
        return recipe
    return recipe.model_copy(update={"rewards": rewards, "environments": environments})


def _changed_blocks(
    blocks: Sequence[Mapping[str, Any]], home: Home, name: Callable[[RegisteredVersion], str]
) -> list[dict[str, Any]]:
    changed: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        changed.append(_with_model(block, f"rewards.{index}.model", home, name))
    return changed


def _with_model(
    block: Mapping[str, Any], key: str, home: Home, name: Callable[[RegisteredVersion], str]
) -> dict[str, Any]:
    if block.get("url") is not None:
        return dict(block)  # a name on that server
    model = _resolved(block.get("model"), key, home, name)
    return dict(block) | ({} if model is None else {"model": model})


def _resolved(model: Any, key: str, home: Home, name: Callable[[RegisteredVersion], str]) -> Any:
    """Return what stands for a registered model; anything else as it is. Raises: RecipeError."""
    if not isinstance(model, str) or not model.startswith(REGISTERED):
        return model
    try:
        return name(find_version(home.mlflow_uri, model))
    except StorageError as error:
        raise RecipeError(f"{key}: {error}") from error
