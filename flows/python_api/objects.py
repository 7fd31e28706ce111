"""Environments and rewards that are given as objects, named so that the workers of a run find
them."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_core.distributed.by_value import write_module
from rl_core.envs.base import BaseTextEnv
from rl_core.errors import RecipeError
from rl_core.rewards.base import Scorer
from rl_core.rewards.of_function import RewardFunction, scorer_of
from rl_core.runtime.own_packages import search_beside

Reward = type[Scorer] | RewardFunction
"""A scorer class, or a function of one sample."""


def environment_overrides(given: Mapping[str, type[BaseTextEnv]], folder: Path) -> list[str]:
    """Return the overrides that name environments by the ids of the rows. Raises: RecipeError."""
    overrides: list[str] = []
    for env_id, cls in given.items():
        if not (isinstance(cls, type) and issubclass(cls, BaseTextEnv)):
            raise RecipeError(
                f"environments[{env_id!r}]: expected a subclass of rl_core.envs.BaseTextEnv, got "
                f"{cls!r:.80}"
            )
        overrides.append(f"environments.{env_id}.target={json.dumps(target_of(cls, folder))}")
    return overrides


def reward_overrides(given: Sequence[Reward], folder: Path) -> list[str]:
    """Return the override that replaces a recipe's rewards; empty if none are given. Raises:
    RecipeError."""
    entries: list[dict[str, str]] = []
    for number, one in enumerate(given):
        if isinstance(one, type) and issubclass(one, Scorer):
            entries.append({"target": target_of(one, folder)})
        elif inspect.isfunction(one):
            if not one.__name__.isidentifier():
                raise RecipeError(f"rewards[{number}]: a lambda has no name; write a def")
            _search_module_of(one)
            entries.append({"target": write_module(scorer_of(one), _searched(folder), one)})
        else:
            raise RecipeError(
                f"rewards[{number}]: expected a function of one sample or a subclass of "
                f"rl_core.rewards.Scorer, got {one!r:.80}"
            )
    return [f"rewards={json.dumps(entries)}"] if entries else []


def target_of(cls: type[Any], folder: Path) -> str:
    """Return the import path of a class; one that cannot be imported, such as that of a notebook,
    is written into a module in `folder`."""
    if _is_importable(cls):
        _search_module_of(cls)
        return f"{cls.__module__}:{cls.__qualname__}"
    return write_module(cls, _searched(folder), cls)


def _is_importable(thing: Any) -> bool:
    module = sys.modules.get(thing.__module__)
    return thing.__module__ != "__main__" and getattr(module, thing.__qualname__, None) is thing


def _search_module_of(thing: object) -> None:
    """Let workers search the folder of the module that a class or function is from."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    if thing.__module__ == "__main__" or file is None:
        return
    root = Path(file).absolute().parents[thing.__module__.count(".")]
    if not root.is_relative_to(sys.prefix):
        search_beside(root / "recipe.yaml")


def _searched(folder: Path) -> Path:
    search_beside(folder / "recipe.yaml")
    return folder
