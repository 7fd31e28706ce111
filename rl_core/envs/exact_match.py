"""Answers of a fixed form, such as a record in JSON: the reply must be the truth, character by
character."""

from __future__ import annotations

from typing import ClassVar

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies
from rl_core.envs.registration import environments
from rl_core.envs.tools.code import after_thinking


@environments.register("exact_match")
class ExactMatchEnv(BaseTextEnv):
    """Single-turn environment; reward 1.0 if the reply after its thinking is the ground truth, or
    one of a list of them, up to white space at both ends; else 0.0."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`; only the fields of the base class."""

    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string", "number", "list"})

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Compare the reply; `metadata["answer"]` is what was compared."""
        self.turns += 1
        answer = after_thinking(action).strip()
        reward = float(answer in self._truths())
        return BaseTextEnvStepOutput(
            observations=[], reward=reward, done=True, metadata={"answer": answer}
        )

    def oracle_replies(self) -> OracleReplies:
        """Return the truth, and the truth with a word behind it."""
        right = self._truths()[0]
        return OracleReplies(right, f"{right} otherwise")

    def _truths(self) -> list[str]:
        given = self.ground_truth
        return [str(one).strip() for one in (given if isinstance(given, list) else [given])]
