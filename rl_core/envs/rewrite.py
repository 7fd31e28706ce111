"""A prompt to rewrite. What a rewrite is worth shows when it is drawn, so nothing is judged here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.envs.registration import environments


@environments.register("rewrite")
class RewriteEnv(BaseTextEnv):
    """One turn without a reward of its own; the trainer of the domain `pe` adds what the pictures earn."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`; there are none besides the shared ones."""

    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset()
    """It looks at none."""

    def __init__(
        self, env_config: Config | Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(env_config, extras)

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take the rewrite."""
        self.turns += 1
        return BaseTextEnvStepOutput(observations=[], reward=0.0, done=True, metadata={})
