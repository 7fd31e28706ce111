r"""Competition maths (AIME, DAPO): the last `Answer: ...` or `\boxed{...}` in the reply's tail.

Only the last `tail_characters` are read, so an answer must be final; where both forms stand there,
the later one counts. math-verify compares it with the truth. Reward +1 or -1, as in DAPO (arXiv
2503.14476).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies
from rl_core.envs.registration import environments
from rl_core.envs.tools.answers import last_boxed
from rl_core.envs.tools.maths import WRONG_NUMBER, math_verifiers

_ANSWER = re.compile(r"answer\s*+\**+\s*+:\s*\**[ \t]*([^\n]+)", re.IGNORECASE)


def read_final(tail: str) -> str | None:
    r"""Return the text after the last `Answer:`, or inside the last `\boxed{}`, whichever begins
    later."""
    boxed = last_boxed(tail)
    answers = list(_ANSWER.finditer(tail))
    if answers and (boxed is None or answers[-1].end() > tail.rfind("\\boxed{")):
        line = answers[-1][1]
        inner = last_boxed(line)
        text = line if inner is None else inner
        text = (
            re.sub(r"<\|?(?:im_end|eot_id|endoftext|/?s)\|?>", "", text)
            .strip()
            .strip("*_`")
            .strip()
        )
        return text.rstrip(".").strip() or None
    if boxed is not None:
        return boxed.strip() or None
    return None


@environments.register("aime")
class AIMEEnv(BaseTextEnv):
    """Single-turn environment; reward +1.0 if the final answer equals the truth mathematically,
    else -1.0."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`."""

        tail_characters: int = Field(default=300, ge=1)
        """Number of characters at the end of the reply in which the answer is searched."""

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
        """Grade the reply; `metadata` has `acc`, True if it is right, and `pred`, the answer that
        was read (or None)."""
        self.turns += 1
        pred = read_final(action[-self.config.tail_characters :])
        acc = pred is not None and any(
            self._verifier.value.same(truth, pred) for truth in self.truths
        )
        self._metrics = {"acc": float(acc), "answered": float(pred is not None)}
        metadata = {"acc": acc, "pred": pred}
        return BaseTextEnvStepOutput(
            observations=[], reward=1.0 if acc else -1.0, done=True, metadata=metadata
        )

    def oracle_replies(self) -> OracleReplies:
        """Return the truth and a number that is hardly anybody's answer, each behind `Answer:`."""
        return OracleReplies(f"Answer: {self.truths[0]}", f"Answer: {WRONG_NUMBER}")

    def close(self) -> None:
        """Release the process that compares answers."""
        super().close()
        self._verifier.release()

    def get_metrics(self) -> dict[str, float]:
        """Return `acc` and `answered`, 0 or 1 each."""
        return dict(self._metrics)
