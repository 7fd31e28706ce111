"""The tools in a system message, for models whose chat template shows none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rl_core.envs.tool_env.tool import Schema

TEXT = (
    "You can call these functions:\n{tools}\nTo call one, write a line for each call, and nothing "
    'else:\n<tool_call>{{"name": <name>, "arguments": <object>}}</tool_call>'
)
"""Text of the system message, as the templates of Hermes and Qwen write it, in fewer words."""


def with_tools(messages: Sequence[Mapping[str, object]], tools: Sequence[Schema]) -> list[Any]:
    """Return a prompt whose system message ends with the tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    told = TEXT.format(tools=listed)
    if not messages or messages[0].get("role") != "system":
        return [{"role": "system", "content": told}, *messages]
    first = messages[0]
    return [{**first, "content": f"{first['content']}\n\n{told}"}, *messages[1:]]
