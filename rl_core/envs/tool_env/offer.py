"""The tools that a row's environment offers to the model, for preparation, which counts their
tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rl_core.envs.registration import make, own_options, spec
from rl_core.envs.tool_env.environment import ToolEnv
from rl_core.envs.tool_env.functions import function_of
from rl_core.errors import EnvError

SEEN = {"tools", "show_tools", "examples"}
"""Settings that decide what a prompt shows."""
TOOLS = "tools"
"""Key of an item with its tools for the chat template."""


class Offers:
    """Items as rollouts show them: with the prompt that the environment makes of theirs, and its
    tools. Those of environments without tools are the items themselves.

    Rows of one environment are offered the same tools, unless they declare their own.
    Args: options: a recipe's `environments`.
    """

    def __init__(self, options: Mapping[str, Mapping[str, object]]) -> None:
        self.options = options
        self._known: dict[str, ToolEnv | None] = {}

    def __call__(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an item as its model reads it. Raises: EnvError when the environment cannot be
        built."""
        name = item.get("env_class")
        if name is None or (env := self._environment(name, item)) is None:
            return item
        own = env.row_tools(item["env_extras"])
        prompt, shown = env.shown(item["prompt"], env.every_tool if own is None else own)
        made = {**item, "prompt": prompt}
        return {**made, TOOLS: shown} if shown else made

    def close(self) -> None:
        """Close the environments."""
        for env in self._known.values():
            if env is not None:
                env.close()
        self._known = {}

    def _environment(self, name: str, item: Mapping[str, Any]) -> ToolEnv | None:
        if name not in self._known:
            self._known[name] = None
            if is_tool_env(name, self.options.get(name)):
                env = make(name, self.options.get(name), item["env_extras"])
                self._known[name] = env if isinstance(env, ToolEnv) else None
        return self._known[name]


def is_tool_env(env_id: str, options: Mapping[str, object] | None) -> bool:
    """Return True if an environment's models call tools by their own template."""
    try:
        cls = spec(env_id, options).load()
    except EnvError:  # its rows are refused elsewhere
        return False
    return issubclass(cls, ToolEnv)


def described_tools(options: Mapping[str, Mapping[str, object]]) -> str:
    """Return what a recipe's environments say of their tools, as one part of a hash; empty if none
    has any. Servers are asked nothing: their addresses and programs stand for them."""
    told: dict[str, object] = {}
    for name, own in options.items():
        if not is_tool_env(name, own):
            continue
        settings = spec(name, own).load().Config(**own_options(own))
        functions = [one.function for one in settings.tools if one.function is not None]
        schemas = [function_of(target).schema for target in functions]
        told[name] = [settings.model_dump(mode="json", include=SEEN), schemas]
    return json.dumps(told, sort_keys=True) if told else ""
