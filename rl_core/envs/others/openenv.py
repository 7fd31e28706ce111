"""Environments of OpenEnv: servers that are reset and stepped, each step with an observation and a
reward.

`environments: {echo: {openenv: "http://127.0.0.1:8000"}}` makes rows with `env_class: echo`
episodes of a server that runs; `openenv: "my_env.server.app:app"` starts one. The package runs in
an interpreter of its own; `rl_core/rollout/agents/programs/openenv_program.py` is what runs there.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rl_core.envs.agent import AgentEnv, AgentSettings
from rl_core.envs.others.interpreters import PROGRAMS, interpreter_with

_APPLICATION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class OpenEnvEnv(AgentEnv):
    """Environment of an OpenEnv server, whose steps the policy's replies are."""

    class Config(AgentSettings):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Settings from the recipe's `environments.<name>`."""

        openenv: str
        """Address of a running server, `http://host:port`, or the application of one that is
        started on this machine for the run, `my_env.server.app:app`."""
        reset: dict[str, Any] = Field(default_factory=dict)
        """Arguments of every `reset`, besides the row's."""
        instructions: str = ""
        """Text before the first observation; unset shows the observation alone, and the form of an
        action that is no text."""
        max_turns: int = Field(default=8, ge=1)
        """Replies that the policy has in an episode; the environment may end it earlier."""
        python: str = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
            default=".venv-openenv/bin/python", validate_default=True
        )
        """Python interpreter of the environment with openenv, and with the packages of a server
        that is started; a relative path starts at the project's folder."""

        @field_validator("openenv", mode="after")
        @classmethod
        def _names_a_server(cls, openenv: str) -> str:
            named = urlsplit(openenv) if "://" in openenv else None
            is_url = named is not None and named.scheme in ("http", "https") and named.hostname
            if not is_url and not _APPLICATION.fullmatch(openenv):
                raise ValueError("must be http://host:port, or an application as my_pkg.app:app")
            return openenv

        @field_validator("python", mode="after")
        @classmethod
        def _interpreter_is_there(cls, python: str) -> str:
            return interpreter_with("openenv", python)

        @property
        def program(self) -> str:
            """The program that plays episodes of OpenEnv."""
            return f"{PROGRAMS}.openenv_program:play"

        @property
        def program_settings(self) -> dict[str, object]:
            """The server, and how its episodes are played."""
            return self.model_dump(
                include={"openenv", "reset", "instructions", "max_turns", "timeout_s"}
            )

    config: Config  # pyright: ignore[reportIncompatibleVariableOverride]
