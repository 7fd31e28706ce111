"""Agents: programs of the user's that play a row by asking the policy through OpenAI's client.

`environments: {my_agent: {agent: "my_pkg.agent:play"}}` makes rows with `env_class: my_agent` rows
of an agent. Its episodes are played by `rl_core.rollout.agents`; this class only checks the row and
the settings.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.envs.registration import AGENT_CLASSES, spec
from rl_core.envs.seats import Player, Seats, check_seats
from rl_core.errors import EnvError, RecipeError
from rl_core.runtime.registry import PluginConfig, import_target

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class AgentSettings(PluginConfig):
    """Settings of everything that asks the policy by itself."""

    timeout_s: float = Field(default=120.0, gt=0)
    """Longest time in seconds that an episode may take, without the policy's own time."""
    concurrency: int = Field(default=16, ge=1)
    """Maximum number of episodes that are played at once in one rank, each in a process of its
    own."""
    python: str | None = None
    """Python interpreter of another environment with the agent's packages, `openai` among
    them; unset is this one."""
    share_reward: bool = True
    """Give each row of an episode that was split the episode's whole reward. With false, and
    an agent that returns a reward per request, a row gets the rewards of its own requests."""

    @property
    def program(self) -> str:
        """The function that plays, `module:function`."""
        raise NotImplementedError(f"{type(self).__name__}.program")

    def seated(self, *, evaluation: bool) -> Seats:
        """Return who plays each seat of an episode; none if the policy alone is asked."""
        return {}

    @property
    def program_settings(self) -> dict[str, object] | None:
        """Argument with which the function makes the one that plays; None if it plays itself."""
        return None


class AgentEnv(BaseTextEnv):
    """Environment whose conversations a program of the user's has with the policy."""

    class Config(AgentSettings):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Settings from the recipe's `environments.<name>`."""

        agent: str
        """Function that plays a row, `my_pkg.my_module:play`: `async def play(row, client)` with an
        `openai.AsyncOpenAI`. It returns a reward, a reward per request, the messages that the
        recipe's `rewards` score, or a reward with metrics."""

        seats: dict[str, Player] = Field(default_factory=dict)
        """Who answers the requests for each model that the agent names: `policy`, which is trained;
        `start`, the model before training; a model as in `model.path`, `models:/NAME@champion`, or
        `{url: …, model: …}`. Unset has one seat for all names, the policy's."""
        evaluation_seats: dict[str, Player] = Field(default_factory=dict)
        """Seats that others play in evaluations, where the policy plays one."""

        @field_validator("agent", mode="after")
        @classmethod
        def _names_a_function(cls, agent: str) -> str:
            if not _TARGET.fullmatch(agent):
                raise ValueError("must name a function as my_pkg.my_module:play")
            return agent

        @field_validator("python", mode="after")
        @classmethod
        def _interpreter_is_there(cls, python: str | None) -> str | None:
            if python is None:
                return None
            found = shutil.which(str(Path(python).expanduser()))
            if found is None:
                raise ValueError("there is no program of this name that can be executed")
            return os.path.abspath(found)

        @model_validator(mode="after")
        def _function_is_there(self) -> AgentEnv.Config:
            # The packages of another environment cannot be imported here.
            if self.python is None:
                try:
                    play = import_target(self.agent)
                except RecipeError as error:
                    said = str(error).partition("; write it as")[0]
                    raise ValueError(f"agent: {said}") from error
                if not callable(play):
                    raise ValueError(f"agent: {self.agent} is no function")
            return self

        @model_validator(mode="after")
        def _seats_fit(self) -> AgentEnv.Config:
            check_seats(self.seats, self.evaluation_seats)
            return self

        @property
        def program(self) -> str:
            """The agent itself."""
            return self.agent

        def seated(self, *, evaluation: bool) -> Seats:
            """Return who plays each seat of an episode; none if the policy alone is asked."""
            return {**self.seats, **(self.evaluation_seats if evaluation else {})}

    config: AgentSettings
    tags: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        env_config: AgentSettings | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the settings. Raises: EnvError on a wrong one."""
        self.config = self._as_config(env_config)  # type: ignore[assignment]
        self.extras = dict(extras or {})
        self.max_turns, self.turns = 1, 0
        self.tool_groups, self.tool_to_toolgroup = [], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Raises: EnvError, since an agent speaks first: it cannot be given a reply."""
        raise EnvError(
            f"{self.config.program} is an agent, which asks the model by itself; its rows are "
            "played by a run or by `rl-train eval` of a model, not of a server or of stored replies"
        )

    @staticmethod
    def aggregate_metrics(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return means over the episodes, and `stitched_share`: the share of the requests after an
        episode's first that went on with a row; 1 if there are none."""
        without_counts = []
        for one in metrics:
            without_counts.append({k: v for k, v in one.items() if k not in _COUNTS})
        means = BaseTextEnv.aggregate_metrics(without_counts)
        later = sum(one.get("later_requests", 0.0) for one in metrics)
        stitched = sum(one.get("stitched_requests", 0.0) for one in metrics)
        return means | {"stitched_share": stitched / later if later else 1.0}


_COUNTS = ("later_requests", "stitched_requests")


def check_rollouts_of_agents(
    environments: Mapping[str, Mapping[str, object]], *, extra_prompts: int, continuous: bool
) -> None:
    """Check what rollouts do with agents and not with other environments, or the reverse.

    Args: environments: the recipe's. extra_prompts, continuous: of its `rollout`. Raises:
    RecipeError naming the key.
    """
    agents = [name for name, options in environments.items() if is_agent(name, options)]
    if extra_prompts and agents:
        raise RecipeError(
            f"rollout.extra_prompts: the episodes of an agent ({agents[0]}) are never given up; "
            "leave it out"
        )
    if continuous and not agents:
        raise RecipeError(
            "rollout.episodes.continuous: only requests of agents are answered one by one, and "
            f"none of the environments ({', '.join(environments) or 'none'}) is one; leave it out"
        )


def is_agent(env_id: str, options: Mapping[str, object] | None) -> bool:
    """Return True if a recipe's options of an environment name an agent."""
    return bool(options) and spec(env_id, options).entry_point in AGENT_CLASSES.values()
