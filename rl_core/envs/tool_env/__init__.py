"""Environments whose models call tools in the way of their own chat template."""

from rl_core.envs.tool_env.environment import ToolEnv
from rl_core.envs.tool_env.tool import Tool, ToolFault

__all__ = ["Tool", "ToolEnv", "ToolFault"]
