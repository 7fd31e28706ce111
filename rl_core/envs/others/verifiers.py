"""Environments of the verifiers package: datasets, rewards, tools and conversations written for it.

`environments: {words: {verifiers: my_taskset, args: {...}}}` makes rows with `env_class: words` its
episodes. The package runs in an interpreter of its own, since it pins another `openai` than ours;
`rl_core/rollout/agents/programs/verifiers_program.py` is what runs there.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from rl_core.envs.agent import AgentEnv, AgentSettings
from rl_core.envs.others.interpreters import PROGRAMS, interpreter_with


class VerifiersEnv(AgentEnv):
    """Environment of the verifiers package, whose own rewards score what the policy did in it."""

    class Config(AgentSettings):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Settings from the recipe's `environments.<name>`."""

        verifiers: str = Field(min_length=1)
        """Module or installed package that exports a taskset; of a Hub id (`owner/name@version`)
        the name counts."""
        args: dict[str, Any] = Field(default_factory=dict)
        """Settings of the taskset, as its own config names them."""
        env: dict[str, Any] = Field(default_factory=dict)
        """Further settings of the verifiers environment: `id` of another than the taskset's own,
        and each seat's, such as a model for a simulated user."""
        max_turns: int | None = Field(default=None, ge=1)
        """Replies that the policy has in an episode; unset leaves it to the environment."""
        python: str = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
            default=".venv-verifiers/bin/python", validate_default=True
        )
        """Python interpreter of the environment with verifiers and the taskset's packages; a
        relative path starts at the project's folder."""

        @field_validator("python", mode="after")
        @classmethod
        def _interpreter_is_there(cls, python: str) -> str:
            return interpreter_with("verifiers", python)

        @property
        def program(self) -> str:
            """The program that plays episodes of verifiers."""
            return f"{PROGRAMS}.verifiers_program:play"

        @property
        def program_settings(self) -> dict[str, object]:
            """The environment, its settings and the limit of turns."""
            return self.model_dump(include={"verifiers", "args", "env", "max_turns"})

    config: Config  # pyright: ignore[reportIncompatibleVariableOverride]
