"""Number of turns of environments, known before any of them is created."""

from __future__ import annotations

from collections.abc import Mapping

from rl_core.envs.registration import config_class, spec


def most_turns(env_id: str, options: Mapping[str, object] | None = None) -> int:
    """Return the turns of an environment for a row without its own number: the recipe's, or its
    class's default.

    Raises: EnvError when there is no such environment.
    """
    known = spec(env_id, options)
    for settings in (options, known.kwargs.get("env_config")):
        if isinstance(settings, Mapping) and isinstance(told := settings.get("max_turns"), int):
            return told
    fields = getattr(config_class(known.load()), "model_fields", {})
    if "max_turns" in fields:
        return int(fields["max_turns"].default)
    return 1


def of_several_turns(
    env_options: Mapping[str, Mapping[str, object]], default: str | None = None
) -> list[str]:
    """Return the multi-turn environments of a recipe.

    Args: default: environment of rows that do not name one.
    """
    named = {**({} if default is None else {default: {}}), **env_options}
    return [env_id for env_id, options in named.items() if most_turns(env_id, options) > 1]
