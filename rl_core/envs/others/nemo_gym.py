"""Resources servers of NeMo Gym: tools and a verdict behind an address.

`environments: {weather: {nemo_gym: "http://127.0.0.1:8000"}}` makes rows with `env_class: weather`
sessions of a server that runs. Nothing of NeMo Gym is needed here; its public protocol is spoken by
`rl_core/rollout/agents/programs/nemo_gym_program.py`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rl_core.envs.agent import AgentEnv, AgentSettings
from rl_core.envs.others.interpreters import PROGRAMS


class NemoGymEnv(AgentEnv):
    """Environment of a NeMo Gym resources server, which offers tools and verifies the episode."""

    class Config(AgentSettings):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Settings from the recipe's `environments.<name>`."""

        nemo_gym: str
        """Address of the running resources server, `http://host:port`."""
        headers: dict[str, str] = Field(default_factory=dict)
        """Headers of every request to it."""
        max_turns: int = Field(default=8, ge=1)
        """Replies that the policy has in an episode."""

        @field_validator("nemo_gym", mode="after")
        @classmethod
        def _is_an_address(cls, nemo_gym: str) -> str:
            named = urlsplit(nemo_gym)
            if named.scheme not in ("http", "https") or not named.hostname:
                raise ValueError("must be the address of a server, http://host:port")
            return nemo_gym

        @property
        def program(self) -> str:
            """The program that plays episodes of NeMo Gym."""
            return f"{PROGRAMS}.nemo_gym_program:play"

        @property
        def program_settings(self) -> dict[str, object]:
            """The server, and the limits of an episode."""
            return self.model_dump(include={"nemo_gym", "headers", "max_turns", "timeout_s"})

    config: Config  # pyright: ignore[reportIncompatibleVariableOverride]
