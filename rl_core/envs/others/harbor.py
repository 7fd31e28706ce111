"""Tasks of Harbor: a folder each, which the policy works on with a shell, and whose tests give the
reward.

`environments: {work: {harbor: tasks}}` makes rows with `env_class: work` tasks of the folder
`tasks`. `rl_core/rollout/agents/programs/harbor_program.py` plays them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rl_core.envs.agent import AgentEnv, AgentSettings
from rl_core.envs.others.harbor_tasks import read_tasks
from rl_core.envs.others.interpreters import PROGRAMS
from rl_core.envs.tools.places.sandbox_choice import SandboxChoice, SandboxMode, container_of
from rl_core.errors import EnvError
from rl_core.runtime.user_paths import user_path


class HarborEnv(AgentEnv):
    """Environment of Harbor's task folders, in which the policy has a shell and tests give the
    reward."""

    class Config(AgentSettings):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Settings from the recipe's `environments.<name>`."""

        harbor: str = Field(min_length=1)
        """Folder of the tasks; a relative path starts at the current folder."""
        max_turns: int = Field(default=16, ge=1)
        """Replies that the policy has in an episode."""
        calls: Literal["tools", "blocks"] = "blocks"
        """Form in which the policy runs a command: `blocks` takes the first block of bash in a
        reply, which any model can write; `tools` offers a tool `bash` by the chat template."""
        command_timeout_s: float = Field(default=60.0, gt=0)
        """Seconds that a command may take."""
        max_answer_characters: int = Field(default=8000, ge=100)
        """Longest output of a command that the policy reads; the middle of a longer one is left
        out."""
        sandbox: SandboxChoice = SandboxMode.BUBBLEWRAP
        """Place where commands run: `bubblewrap`, for tasks that need no image; `docker` or
        `podman`, which build the task's Dockerfile."""
        timeout_s: float = Field(default=900.0, gt=0)
        """Longest time in seconds that an episode may take, without the policy's own time."""

        @field_validator("harbor", mode="after")
        @classmethod
        def _is_absolute(cls, harbor: str) -> str:
            # Workers may start in another folder.
            return str(user_path(harbor).absolute())

        @model_validator(mode="after")
        def _tasks_can_be_played(self) -> HarborEnv.Config:
            try:
                tasks = read_tasks(Path(self.harbor))
            except EnvError as error:
                raise ValueError(str(error)) from error
            if container_of(self.sandbox) is not None:
                return self
            if self.sandbox != SandboxMode.BUBBLEWRAP:
                raise ValueError("sandbox: must be bubblewrap, docker or podman")
            for task in tasks:
                if task.needs_image:
                    raise ValueError(
                        f"task {task.name} needs an image ({task.needs_image}), which bubblewrap "
                        "has not; say sandbox: docker, or move the task to another folder"
                    )
            return self

        @property
        def program(self) -> str:
            """The program that plays tasks of Harbor."""
            return f"{PROGRAMS}.harbor_program:play"

        @property
        def program_settings(self) -> dict[str, object]:
            """The folder, the sandbox, and the limits of an episode."""
            names = {"harbor", "max_turns", "calls", "command_timeout_s", "max_answer_characters"}
            return self.model_dump(mode="json", include=names | {"sandbox"})

    config: Config  # pyright: ignore[reportIncompatibleVariableOverride]
