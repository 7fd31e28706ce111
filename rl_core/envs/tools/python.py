"""The Python tool: runs a model's code in a sandbox; its printed output is the observation."""

from __future__ import annotations

from rl_core.envs.tools.core import ToolGroup, tool
from rl_core.envs.tools.execution import Outcome
from rl_core.envs.tools.places.sandbox_choice import SandboxChoice, SandboxMode
from rl_core.envs.tools.sandbox import SandboxSettings, lease_pool

MAX_CHARACTERS = 8000


class PythonCodeExecutorToolGroup(ToolGroup):
    """Tool group with one tool, `python`."""

    def __init__(self, timeout: float = 10.0, mode: SandboxChoice = SandboxMode.BUBBLEWRAP) -> None:
        """Create the tool and lease a sandbox pool.

        Args: timeout: seconds for one call. Raises: EnvError when a sandbox is requested but not
        available.
        """
        super().__init__()
        self.timeout_s = timeout
        self._pool = lease_pool(SandboxSettings(mode=mode))

    @tool
    def python(self, code: str) -> str:
        """Run the code and return its printed output, followed by the traceback of its error, if
        any. Each call starts afresh."""
        with self._pool.value.sandbox(code) as sandbox:
            execution = sandbox.run(timeout_s=self.timeout_s)
        stdout, stderr = (
            text.decode("utf-8", "replace") for text in (execution.stdout, execution.stderr)
        )
        endings = {
            Outcome.TIMEOUT: f"TimeoutError: the code ran longer than {self.timeout_s:g} seconds\n",
            Outcome.LOST: "SystemError: the code ended its interpreter\n",
        }
        return _shortened(stdout) + _shortened(stderr) + endings.get(execution.outcome, "")

    def close(self) -> None:
        """Release the sandboxes."""
        self._pool.release()


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
