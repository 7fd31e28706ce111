"""The reference page of all algorithms, rewards, data sources, backends and environments, with the
keys of their blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from flows.reference.markdown import purpose
from flows.reference.settings import Settings, keys, sections
from rl_core.runtime.registry import Registry

TITLE = """# Plug-ins

What a recipe can name, and the keys beside the name. A class of your own stands there as `target:
pkg.module:Class`.
"""


def plugins_page() -> str:
    """Return the page as Markdown."""
    from rl_core.algorithms import algorithms
    from rl_core.data.order.registry import data_sources
    from rl_core.parts import backends
    from rl_core.rewards import reward_scorers

    parts = [TITLE, *_registered("Algorithms", "algorithm: {name: NAME, key: value}", algorithms)]
    parts += _registered(
        "Rewards", "rewards: [{name: NAME, weight: 1.0, key: value}]", reward_scorers
    )
    parts += _registered("Training backends", "backend: {name: NAME, key: value}", backends)
    parts += _registered("Data sources", "data: {source: {name: NAME}}", data_sources)
    return "\n".join([*parts, *_environments()])


def _registered(title: str, place: str, registry: Registry[Any]) -> Iterator[str]:
    yield f"## {title}\n\n`{place}`\n"
    configs = {name: getattr(registry.get(name), "Config", None) for name in registry.names()}
    for name, config in configs.items():
        yield from _plugin(name, registry.get(name), config)
    yield from _sections(config for config in configs.values() if config is not None)


def _sections(configs: Iterable[Settings]) -> Iterator[str]:
    """Yield the sections inside the plug-ins' configs, each once."""
    named: dict[Settings, str] = {}
    for config in configs:
        for key, f in config.model_fields.items():
            named |= dict.fromkeys(sections(f.annotation), key)
    for inner, key in named.items():
        yield f"### Section `{key}`\n\n{purpose(inner)}\n\n{keys(inner, key)}"


def _environments() -> Iterator[str]:
    from rl_core.envs.registration import config_class, environments

    yield "## Environments\n\n`environments: {NAME: {key: value}}`\n"
    for name in environments.names():
        cls = environments.get(name)
        yield from _plugin(name, cls, config_class(cls))


def _plugin(name: str, cls: type[object], config: Settings | None) -> Iterator[str]:
    yield f"### `{name}`\n\n{purpose(cls)}\n"
    if config is not None and config.model_fields:
        yield keys(config, made=_without_a_key(config))


def _without_a_key(config: Settings) -> BaseModel | None:
    """Return the settings of a recipe that states no key; None if some key must be given."""
    if any(field.is_required() for field in config.model_fields.values()):
        return None
    return config()
