"""Environments of several turns meet a chat template that cannot carry them: said before anything is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_core.envs.registration import config_class, spec
from rl_core.models.turns import CannotContinue
from rl_core.rollout.chat import ChatFormat


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


def check_several_turns(chat: ChatFormat, env_options: Mapping[str, Mapping[str, Any]]) -> None:
    """Whether the environments that a recipe names can be played. Rows that name others are seen at a second turn.

    Raises: CannotContinue, naming one of several turns, when the template cannot carry them.
    """
    several = [env_id for env_id, options in env_options.items() if most_turns(env_id, options) > 1]
    if not several:
        return
    try:
        chat.check_several_turns()
    except CannotContinue as refusal:
        raise CannotContinue(f"environments.{several[0]} has several turns: {refusal}") from refusal
