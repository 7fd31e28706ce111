"""Open questions that nothing grades here: their replies are judged by the recipe's scorers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.envs.registration import environments


@environments.register("ungraded")
class UngradedEnv(BaseTextEnv):
    """Single-turn environment without a reward of its own; a recipe adds scorers, such as
    `reward_model`."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`; only the fields of the base class."""

    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string", "number", "list"})
    """Accepted kinds of ground truth: any, since only scorers may read it."""

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(env_config, extras)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Accept the reply and end the conversation."""
        self.turns += 1
        return BaseTextEnvStepOutput(observations=[], reward=0.0, done=True, metadata={})
