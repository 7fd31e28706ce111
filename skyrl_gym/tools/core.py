"""SkyRL's import path of `tool` and `ToolGroup`: `from skyrl_gym.tools.core import tool,
ToolGroup`."""

from rl_core.envs.tools.core import ToolGroup, tool

__all__ = ["ToolGroup", "tool"]
