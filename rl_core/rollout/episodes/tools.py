"""Tools of environments, shown by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_core.envs.calls.forms import form_of
from rl_core.envs.registration import config_class, own_options, spec
from rl_core.envs.tool_env.environment import ToolEnv
from rl_core.envs.tool_env.offer import is_tool_env
from rl_core.envs.tool_env.settings import ShowTools
from rl_core.errors import ModelError
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.episode import Episode


def offer_tools(env: object, episode: Episode, chat: ChatFormat) -> frozenset[str]:
    """Offer a row's tools to the model, and tell its environment how the model writes calls.

    Returns: special tokens that mark calls. Raises: EnvError when the form of calls is not known.
    """
    if not isinstance(env, ToolEnv):
        return frozenset()
    env.use_form(form_of(template_text(chat)))
    episode.tools = env.template_tools
    return env.call_form.tags


def check_shows_tools(chat: ChatFormat, options: Mapping[str, Mapping[str, object]]) -> None:
    """Check that the model can read the tools of a recipe's environments, and that the form of its
    calls is known.

    Args: options: a recipe's `environments`. Raises: ModelError.
    """
    template = template_text(chat)
    for name, own in options.items():
        config = _settings(name, own)
        if config is None or config.show_tools is not ShowTools.TEMPLATE:
            continue
        if not chat.template.shows_tools:
            raise ModelError(
                f"environments.{name}: the model's chat template does not show tools: a prompt "
                "with one reads the same as without. Set show_tools: system to show them in the "
                "system message, or use a model that was trained with tools"
            )
        if config.tool_format is None and form_of(template) is None:
            raise ModelError(
                f"environments.{name}: the model's chat template does not tell in which form calls "
                "are written; set tool_format, or show_tools: system"
            )


def template_text(chat: ChatFormat) -> str:
    """Return the source of a chat template; of several, all of them."""
    template: Any = getattr(chat.template.owner, "chat_template", None)
    if isinstance(template, Mapping):
        return "\n".join(map(str, template.values()))
    return str(template or getattr(chat.tokenizer, "chat_template", None) or "")


def _settings(name: str, options: Mapping[str, object]) -> ToolEnv.Config | None:
    if not is_tool_env(name, options):
        return None
    known = spec(name, options)
    settings = config_class(known.load())
    given = known.kwargs.get("env_config")
    merged = {**(given if isinstance(given, Mapping) else {}), **own_options(options)}
    config = None if settings is None else settings(**merged)
    return config if isinstance(config, ToolEnv.Config) else None
