"""Contract of a tool, and the form in which models are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rl_core.envs.tool_env.result import Content

Schema = dict[str, Any]
"""A tool in OpenAI's form: `{"type": "function", "function": {"name", "description",
"parameters"}}`."""


class ToolFault(Exception):
    """A call that failed by the model's own doing or by the tool's; the model reads the message."""


class ToolTimeout(ToolFault):
    """A call that took longer than its deadline."""


class Tool(Protocol):
    """A tool that a model may call."""

    @property
    def name(self) -> str:
        """Name by which models call it."""
        ...

    @property
    def schema(self) -> Schema:
        """Description of the tool."""
        ...

    def call(self, arguments: Mapping[str, object], timeout_s: float) -> Content:
        """Return the result as the model reads it. Called in a thread of its own.

        Args: timeout_s: deadline in seconds, after which nobody waits any more.
        Raises: ToolFault, which the model reads; EnvError when the tool itself is broken, which
        fails the row.
        """
        ...


def schema_of(name: str, description: str, parameters: Mapping[str, object]) -> Schema:
    """Return a tool in OpenAI's form.

    Args: parameters: JSON schema of an object. Titles that repeat names are left out, since each
    prompt has the schema.
    """
    function = {"name": name, "description": description, "parameters": _untitled(parameters)}
    return {"type": "function", "function": function}


def _untitled(schema: object) -> object:
    if isinstance(schema, list):
        return [_untitled(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    # A title is a text; an argument of that name is a schema.
    return {
        key: _untitled(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }
