"""Rows of OpenEnv environments: `{openenv: echo, size: 64, env_class: echo}` in a recipe's data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from pydantic import Field

from rl_core.builtin.data.environments.base import EnvironmentRows


class OpenEnvRows(EnvironmentRows):
    """Episodes of an OpenEnv environment: the arguments of their resets."""

    openenv: str = Field(min_length=1)
    """Name of the environment in the rows; which server plays them is in the recipe's
    `environments`."""
    size: int = Field(ge=1)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Number of rows."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of each row's reset."""
    tasks_of: str | None = None
    """Split of the environment's own tasks, which are reset by their number; unset resets by
    seeds."""

    @property
    def source(self) -> str:
        """Name of the environment in the rows' `data_source`."""
        return f"openenv/{self.openenv}"

    @property
    def shuffled(self) -> bool:
        """False: `seed` is the first one that an episode is reset with."""
        return False

    def tasks(self) -> Iterator[dict[str, object]]:
        """Yield a row for each seed or task, without an end."""
        for number in count(self.seed or 0):
            own = {"seed": number}
            if self.tasks_of is not None:
                own = {"split": self.tasks_of, "index": number}
            reset = json.dumps({**self.reset, **own}, sort_keys=True)
            yield {
                "key": f"{self.openenv} {reset}",
                "prompt": [{"role": "user", "content": f"{self.openenv}, reset with {reset}"}],
                # The server grades; a row must name something that is right.
                "reward_spec": {"method": "openenv", "ground_truth": reset},
                "extra_info": {"index": number, "openenv_reset": reset},
            }
