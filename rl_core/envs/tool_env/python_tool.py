"""The sandbox's Python as a tool."""

from __future__ import annotations

from collections.abc import Mapping

from rl_core.envs.tool_env.tool import Schema, ToolFault, schema_of
from rl_core.envs.tools.places.sandbox_choice import SandboxChoice
from rl_core.envs.tools.python import PythonCodeExecutorToolGroup

SAID = "Run a Python program and return what it prints. Each call starts afresh."
PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The program."}},
    "required": ["code"],
}


class PythonTool:
    """Programs in the sandbox; what they print is the answer.

    Args: timeout_s: seconds for a program. Raises: EnvError when there is no sandbox.
    """

    name = "python"
    schema: Schema = schema_of(name, SAID, PARAMETERS)

    def __init__(self, timeout_s: float, mode: SandboxChoice) -> None:
        self._group = PythonCodeExecutorToolGroup(timeout_s, mode)

    def call(self, arguments: Mapping[str, object], timeout_s: float) -> str:
        """Run a program. Raises: ToolFault when the argument is missing."""
        if set(arguments) != {"code"} or not isinstance(arguments["code"], str):
            raise ToolFault("code: must be the text of a program, and the only argument")
        return self._group.python(arguments["code"])

    def close(self) -> None:
        """Release the sandbox."""
        self._group.close()
