"""Tool groups: methods that a model may call from its reply (the SkyRL contract)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from rl_core.errors import EnvError

F = TypeVar("F", bound=Callable[..., object])


def tool(function: F) -> F:
    """Mark a method of a `ToolGroup` as callable by the model, under its own name."""
    function._is_tool = True  # type: ignore[attr-defined]
    return function


class ToolGroup:
    """Tools that share a resource, such as a connection or a sandbox. A subclass marks its methods
    with `@tool`."""

    def __init__(self, name: str | None = None) -> None:
        """Create the group.

        Args: name: name of the group in metadata; the class's name by default.
        """
        self.name = name or type(self).__name__
        self._tools: dict[str, Callable[..., object]] = {
            attribute: getattr(self, attribute)
            for attribute in dir(type(self))
            if getattr(getattr(type(self), attribute), "_is_tool", False)
        }

    def get_name(self) -> str:
        """Return the group's name."""
        return self.name

    def get_tool_names(self) -> list[str]:
        """Return the names of the group's tools, sorted."""
        return sorted(self._tools)

    def get_tool(self, tool_name: str) -> Callable[..., object] | None:
        """Return the tool of that name, or None."""
        return self._tools.get(tool_name)

    def get_tool_to_group_mapping(self) -> dict[str, str]:
        """Map each tool's name to this group's name."""
        return {name: self.name for name in self._tools}

    def execute_tool(self, tool_name: str, *args: object, **kwargs: object) -> Any:
        """Call a tool. Raises: EnvError when the group has no tool of that name."""
        chosen = self.get_tool(tool_name)
        if chosen is None:
            raise EnvError(
                f"{self.name} has no tool {tool_name!r} (known: {', '.join(self.get_tool_names())})"
            )
        return chosen(*args, **kwargs)

    def close(self) -> None:
        """Release the tools' resources."""
