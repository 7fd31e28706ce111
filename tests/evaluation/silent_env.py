"""Environments from outside the project, with and without a full reward."""

from typing import ClassVar

from rl_core.envs.base import BaseTextEnv


class Silent(BaseTextEnv):
    """Says nothing about its rewards."""


class Telling(BaseTextEnv):
    """Names its full reward."""

    full_reward: ClassVar[float] = 2.0
