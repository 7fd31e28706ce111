"""Environments by id: the built-in ones, found in this folder, and the user's own, registered at run time."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from rl_core.envs.base import BaseTextEnv
from rl_core.errors import EnvError, RecipeError
from rl_core.registry import Registry, import_target, nearest

environments: Registry[BaseTextEnv] = Registry("environment", "rl_core.envs")
"""The built-in environments: decorate a class in this folder with `@environments.register("<id>")`."""

_specs: dict[str, EnvSpec] = {}
_discovery = Lock()


@dataclass(frozen=True)
class EnvSpec:
    """How an environment is made."""

    id: str
    """The `env_class` of a row."""
    entry_point: str | type
    """The class, or its import path `pkg.module:Class`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments given to every instance; those given to `make` win."""

    def load(self) -> type:
        """The class. Raises: EnvError when it cannot be imported or has no `step`."""
        cls = _import(self.entry_point) if isinstance(self.entry_point, str) else self.entry_point
        if not (inspect.isclass(cls) and callable(getattr(cls, "step", None))):
            raise EnvError(f"environment {self.id!r}: {self.entry_point!r} is not a class with a step method")
        return cls


def register(id: str, entry_point: str | type, kwargs: Mapping[str, Any] | None = None) -> None:
    """Add an environment under `id`.

    Args:
        id: what rows name in `env_class`.
        entry_point: the class, or its import path `pkg.module:Class`, imported when first made.
        kwargs: keyword arguments given to every instance.

    Raises: EnvError when the id is taken.
    """
    if id in registered():
        raise EnvError(f"environment {id!r} is already registered")
    _specs[id] = EnvSpec(id, entry_point, dict(kwargs or {}))


def registered() -> list[str]:
    """All known ids, sorted."""
    return sorted({*_builtin_names(), *_specs})


def spec(env_id: str) -> EnvSpec:
    """How `env_id` is made. Raises: EnvError naming the nearest or all known ids."""
    if env_id in _specs:
        return _specs[env_id]
    if env_id in _builtin_names():
        return EnvSpec(env_id, environments.get(env_id))
    if ":" in env_id:
        return EnvSpec(env_id, env_id)
    raise EnvError(f"unknown environment {env_id!r}{nearest(env_id, registered())}")


def make(env_id: str, env_config: Any = None, extras: Mapping[str, Any] | None = None, **kwargs: Any) -> BaseTextEnv:
    """A fresh environment for one row.

    Args:
        env_id: a registered id, or an import path `pkg.module:Class`.
        env_config: the class's `Config`, or its fields as a mapping.
        extras: the row.
        kwargs: further keyword arguments of the class.

    Raises: EnvError on an unknown id, setting or row.
    """
    known = spec(env_id)
    given: dict[str, Any] = {"env_config": env_config, "extras": extras}
    arguments = {**known.kwargs, **{key: value for key, value in given.items() if value is not None}, **kwargs}
    arguments = {"env_config": {}, "extras": {}, **arguments}
    return known.load()(**arguments)


def accepted_ground_truths() -> dict[str, frozenset[str]]:
    """For every id, the kinds of `reward_spec.ground_truth` it takes. Imports the environments."""
    return {env_id: _kinds(spec(env_id).load()) for env_id in registered()}


def _kinds(cls: type) -> frozenset[str]:
    return frozenset(getattr(cls, "ground_truth_kinds", BaseTextEnv.ground_truth_kinds))


def _builtin_names() -> list[str]:
    # Rollout threads may ask at once; without the lock a second one would see a half-filled registry.
    with _discovery:
        return environments.names()


def _import(target: str) -> type:
    try:
        return import_target(target)
    except RecipeError as error:
        raise EnvError(str(error)) from error
