"""Requests without a right answer. What a reply is worth is said by the recipe's scorers, such as a
judge, so nothing is graded here."""

from __future__ import annotations

from typing import ClassVar

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.envs.registration import environments


@environments.register("open_ended")
class OpenEndedEnv(BaseTextEnv):
    """Single-turn environment without a reward of its own; the recipe's `rewards` add theirs."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`; only the fields of the base class."""

    ground_truth_kinds: ClassVar[frozenset[str]] = BaseTextEnv.ground_truth_kinds
    """Accepted kinds of ground truth: any, since only scorers may read it."""

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Accept the reply and end the conversation."""
        self.turns += 1
        return BaseTextEnvStepOutput(observations=[], reward=0.0, done=True, metadata={})
