r"""Geometry from a picture (Geometry3K): reasoning, `</think>`, then the answer in `\boxed{}`.

reward = (1 - w) * math-verify(last box after the thinking) + w * format, with w = 0.1. The format
is right if the reply is one block of thinking, closed once (`<think>` itself may be in the prompt's
template), with a box after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies
from rl_core.envs.registration import environments
from rl_core.envs.tools.answers import last_boxed
from rl_core.envs.tools.code import after_thinking
from rl_core.envs.tools.maths import WRONG_NUMBER, math_verifiers

_FORM = re.compile(
    r"\s*+(?:<think>)?+((?:(?!</?think>).)+)</think>((?:(?!</?think>).)*)", re.DOTALL
)


@environments.register("geo3k")
class Geo3kEnv(BaseTextEnv):
    r"""Single-turn environment; reward 0.9 for a last `\boxed{}` after `</think>` that equals the
    truth, plus 0.1 for the format."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`."""

        format_weight: float = Field(default=0.1, ge=0, le=1)
        """Share of the reward that the format earns."""

    config: Config
    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string", "number", "list"})

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row.

        Raises: EnvError when the row's ground truth is missing.
        """
        super().__init__(env_config, extras)
        self.truths = [str(answer) for answer in self.acceptable_answers]
        self._verifier = math_verifiers.lease(None)
        self._metrics: dict[str, float] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the reply; `metadata` has the answer that was read, `accuracy` and `format`."""
        self.turns += 1
        answer = last_boxed(after_thinking(action))
        accuracy = float(
            answer is not None
            and any(self._verifier.value.same(truth, answer) for truth in self.truths)
        )
        form = _FORM.fullmatch(action)
        format_score = float(
            form is not None and bool(form[1].strip()) and last_boxed(form[2]) is not None
        )
        weight = self.config.format_weight
        self._metrics = {"accuracy": accuracy, "format": format_score}
        reward = (1 - weight) * accuracy + weight * format_score
        metadata = {"answer": answer, "accuracy": accuracy, "format": format_score}
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=metadata)

    def oracle_replies(self) -> OracleReplies:
        r"""Return the truth and a number that is hardly anybody's answer, each in `\boxed{}` after
        a thought."""
        return OracleReplies(_thought_and_box(self.truths[0]), _thought_and_box(WRONG_NUMBER))

    def close(self) -> None:
        """Release the process that compares answers."""
        super().close()
        self._verifier.release()

    def get_metrics(self) -> dict[str, float]:
        """Return `accuracy` and `format`, 0 or 1 each."""
        return dict(self._metrics)


def _thought_and_box(answer: str) -> str:
    return f"<think>Measured.</think> \\boxed{{{answer}}}"
