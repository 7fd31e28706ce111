"""How many turns environments give, told before any of them is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_core.envs.registration import config_class, spec


def most_turns(env_id: str, options: Mapping[str, Any] | None = None) -> int:
    """Turns that an environment gives a row that asks for no number of its own: the recipe's, or its class's default.

    Raises: EnvError when there is no such environment.
    """
    known = spec(env_id, options)
    for settings in (options, known.kwargs.get("env_config")):
        if isinstance(settings, Mapping) and isinstance(told := settings.get("max_turns"), int):
            return told
    fields = getattr(config_class(known.load()), "model_fields", {})
    return int(fields["max_turns"].default) if "max_turns" in fields else 1


def of_several_turns(env_options: Mapping[str, Mapping[str, Any]], default: str | None = None) -> list[str]:
    """Those of a recipe's environments that play several turns. Args: default: that of rows which name none."""
    named = {**({} if default is None else {default: {}}), **env_options}
    return [env_id for env_id, options in named.items() if most_turns(env_id, options) > 1]
