"""Registry of environments by id: the built-in ones, found in this folder, and the user's own,
registered at run time."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from rl_core.envs.base import BaseTextEnv
from rl_core.errors import EnvError, RecipeError
from rl_core.runtime.registry import PluginConfig, Registry, import_target, nearest

environments: Registry[BaseTextEnv] = Registry("environment", "rl_core.envs")
"""The built-in environments: decorate a class in this folder with
`@environments.register("<id>")`."""

CLASS_KEYS = ("target", "kwargs")
"""Keys of a recipe's options that name the environment's class and its further arguments."""
SKYRL_KEYS = ("env_class", "log_requests")
"""Keys that SkyRL's callers of `make` put among the options of any environment; only a class that
declares one, or has no `Config`, gets it."""

AGENT_CLASSES = {
    "agent": "rl_core.envs.agent:AgentEnv",
    "verifiers": "rl_core.envs.others.verifiers:VerifiersEnv",
    "openenv": "rl_core.envs.others.openenv:OpenEnvEnv",
    "nemo_gym": "rl_core.envs.others.nemo_gym:NemoGymEnv",
    "harbor": "rl_core.envs.others.harbor:HarborEnv",
}
"""Keys of a recipe's options that name a program which asks the policy by itself, and the classes
that check its rows."""

TOOLS_KEY, TOOLS_CLASS = "tools", "rl_core.envs.tool_env.environment:ToolEnv"
"""Key of a recipe's options that lists an environment's tools, and the class of such an environment
that names no other."""

_specs: dict[str, EnvSpec] = {}
_discovery = Lock()


@dataclass(frozen=True)
class EnvSpec:
    """Definition of an environment: its class and the arguments of its instances."""

    id: str
    """Id that rows name in `env_class`."""
    entry_point: str | type
    """The class, or its import path `pkg.module:Class`."""
    kwargs: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of every instance; arguments of `make` override them."""

    def load(self) -> type:
        """Import the class. Raises: EnvError when it cannot be imported or has no `step`."""
        cls = _import(self.entry_point) if isinstance(self.entry_point, str) else self.entry_point
        if not (inspect.isclass(cls) and callable(getattr(cls, "step", None))):
            raise EnvError(
                f"environment {self.id!r}: {self.entry_point!r} is not a class with a step method"
            )
        return cls


def register(id: str, entry_point: str | type, kwargs: Mapping[str, object] | None = None) -> None:
    """Add an environment under `id`.

    Args:
        id: name of the environment in the rows' `env_class`.
        entry_point: the class, or its import path `pkg.module:Class`, imported when first used.
        kwargs: keyword arguments of every instance.

    Raises: EnvError when the id is taken.
    """
    if id in registered():
        raise EnvError(f"environment {id!r} is already registered")
    _specs[id] = EnvSpec(id, entry_point, dict(kwargs or {}))


def registered() -> list[str]:
    """Return all known ids, sorted."""
    return sorted({*_builtin_names(), *_specs})


def spec(env_id: str, options: Mapping[str, Any] | None = None) -> EnvSpec:
    """Return the definition of `env_id`.

    Args: options: the environment's options in a recipe; `target: pkg.module:Class` selects the
    class directly.
    Raises: EnvError naming the nearest or all known ids.
    """
    if options and options.get("target") is not None:
        if env_id in _builtin_names():
            raise EnvError(
                f"environment {env_id!r} is built in; give the class {options['target']} another "
                "name"
            )
        return EnvSpec(env_id, str(options["target"]), dict(options.get("kwargs") or {}))
    if env_id in _specs:
        return _specs[env_id]
    if env_id in _builtin_names():
        return EnvSpec(env_id, environments.get(env_id))
    for key, agent_class in AGENT_CLASSES.items():
        if options and options.get(key) is not None:
            return EnvSpec(env_id, agent_class)
    if options and options.get(TOOLS_KEY) is not None:
        return EnvSpec(env_id, TOOLS_CLASS)
    if ":" in env_id:
        return EnvSpec(env_id, env_id)
    raise EnvError(f"unknown environment {env_id!r}{nearest(env_id, registered())}")


def make(
    env_id: str,
    env_config: object = None,
    extras: Mapping[str, object] | None = None,
    **kwargs: object,
) -> BaseTextEnv:
    """Create an environment for one row.

    Args:
        env_id: a registered id, or an import path `pkg.module:Class`.
        env_config: the class's `Config`, or its fields as a mapping, `SKYRL_KEYS` among them.
        extras: the row.
        kwargs: further keyword arguments of the class.

    Raises: EnvError on an unknown id, setting or row.
    """
    options = env_config if isinstance(env_config, Mapping) else None
    known = spec(env_id, options)
    cls = known.load()
    if options is not None:
        env_config = as_settings(cls, _declared(cls, own_options(options)))
    given: dict[str, object] = {"env_config": env_config, "extras": extras}
    arguments = {
        **known.kwargs,
        **{key: value for key, value in given.items() if value is not None},
        **kwargs,
    }
    arguments = {"env_config": {}, "extras": {}, **arguments}
    return cls(**arguments)


def own_options(options: Mapping[str, object]) -> dict[str, object]:
    """Return a recipe's options of an environment, without the keys that name its class."""
    return {key: value for key, value in options.items() if key not in CLASS_KEYS}


def _declared(cls: type, options: dict[str, object]) -> dict[str, object]:
    """Return options without those of `SKYRL_KEYS` that the class does not declare."""
    config_cls = getattr(cls, "Config", None)
    if config_cls is None:
        return options
    others = set(SKYRL_KEYS) - set(config_cls.model_fields)
    return {key: value for key, value in options.items() if key not in others}


def config_class(cls: type) -> type[PluginConfig] | None:
    """Return the environment's own `Config`, or None if it has none and accepts any options."""
    config_cls = getattr(cls, "Config", None)
    if config_cls is BaseTextEnv.Config:
        return None
    return config_cls


def as_settings(cls: type, options: Mapping[str, object]) -> Mapping[str, object]:
    """Convert options to what the environment reads: one without a `Config` may use attributes
    (`env_config.db_path`)."""
    if not options or config_class(cls) is not None:
        return options
    from omegaconf import OmegaConf

    return OmegaConf.create(dict(options))  # type: ignore[return-value]


def portable_options(options: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """Return a recipe's options with registered environments named by import path, for use in other
    processes.

    Raises: EnvError for a class that no other process could import.
    """
    portable = {env_id: dict(values) for env_id, values in options.items()}
    for env_id, known in _specs.items():
        entry = known.entry_point
        path = entry if isinstance(entry, str) else f"{entry.__module__}:{entry.__qualname__}"
        if not isinstance(entry, str) and (entry.__module__ == "__main__" or "<locals>" in path):
            raise EnvError(
                f"environment {env_id!r}: workers cannot import {path}; put the class into a module"
            )
        portable[env_id] = {
            "target": path,
            "kwargs": dict(known.kwargs),
            **portable.get(env_id, {}),
        }
    return portable


def accepted_ground_truths() -> dict[str, frozenset[str]]:
    """Return the accepted kinds of `reward_spec.ground_truth` for every id. Imports the
    environments."""
    return {env_id: kinds_of(spec(env_id).load()) for env_id in registered()}


def kinds_of(cls: type) -> frozenset[str]:
    """Return the kinds of ground truth that an environment class accepts; all kinds if it does not
    declare any."""
    return frozenset(getattr(cls, "ground_truth_kinds", BaseTextEnv.ground_truth_kinds))


def _builtin_names() -> list[str]:
    # Rollout threads may ask at once; without the lock a second one would see a half-filled
    # registry.
    with _discovery:
        return environments.names()


def _import(target: str) -> type:
    try:
        return import_target(target)
    except RecipeError as error:
        raise EnvError(str(error)) from error
