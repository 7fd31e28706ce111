"""`from skyrl_gym.tools.core import tool, ToolGroup`, as SkyRL has it."""

from rl_core.envs.tools.core import ToolGroup, tool

__all__ = ["ToolGroup", "tool"]
