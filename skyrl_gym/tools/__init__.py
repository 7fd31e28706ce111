"""SkyRL's tool groups."""

from rl_core.envs.tools.core import ToolGroup, tool
from rl_core.envs.tools.python import PythonCodeExecutorToolGroup
from rl_core.envs.tools.search import SearchToolGroup
from rl_core.envs.tools.sql import SQLCodeExecutorToolGroup

__all__ = [
    "PythonCodeExecutorToolGroup",
    "SQLCodeExecutorToolGroup",
    "SearchToolGroup",
    "ToolGroup",
    "tool",
]
