"""Grade-school maths over several turns: each turn ends in a tentative `#### <number>`, graded at
once.

A right number earns 1 and ends the conversation. A wrong number in the right format earns
`format_reward / max_turns`, so that all wrong turns of a conversation together earn less than
`format_reward`. Numbers are read as in `gsm8k`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, Message, OracleReplies
from rl_core.envs.gsm8k import other_number, read_answer, read_truths
from rl_core.envs.registration import environments

TRY_AGAIN = (
    "That is not the final answer yet. Check your reasoning step by step, then give a tentative "
    "answer in the form '#### <number>'."
)
LAST_TURN = "This is your last turn. Give the final answer alone, in the form '#### <number>'."


@environments.register("gsm8k_multi_turn")
class GSM8kMultiTurnEnv(BaseTextEnv):
    """Environment of up to `max_turns` turns; reward 1.0 for a right turn, 0.2 / max_turns for a
    well-formed wrong one, else 0.0."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`."""

        max_turns: int = Field(default=5, ge=1)
        """Maximum number of turns."""
        format_reward: float = Field(default=0.2, ge=0, lt=1)
        """Largest reward that all turns together could earn for their format alone."""

    config: Config
    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string", "number", "list"})

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row.

        Raises: EnvError when the row's ground truth is missing or not a number.
        """
        super().__init__(env_config, extras)
        self.truths = read_truths(self)
        self._answered = 0
        self._is_right = False

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the turn; `metadata["answer"]` is the number read from it, as text, or None."""
        self.turns += 1
        answer = read_answer(action)
        self._is_right = answer is not None and answer in self.truths
        self._answered += answer is not None
        form_reward = self.config.format_reward / self.max_turns if answer is not None else 0.0
        reward = 1.0 if self._is_right else form_reward
        done = self._is_right or self.turns >= self.max_turns
        observations: list[Message] = []
        if not done:
            text = LAST_TURN if self.turns + 1 == self.max_turns else TRY_AGAIN
            observations = [{"role": "user", "content": text}]
        metadata = {"answer": None if answer is None else str(answer)}
        return BaseTextEnvStepOutput(
            observations=observations, reward=reward, done=done, metadata=metadata
        )

    def oracle_replies(self) -> OracleReplies:
        """Return the truth and another number, each behind `####`."""
        return OracleReplies(f"#### {self.truths[0]:f}", f"#### {other_number(self.truths):f}")

    def get_metrics(self) -> dict[str, float]:
        """Return `correct` (0 or 1), `turns`, and `answered` (share of well-formed turns)."""
        answered = self._answered / max(1, self.turns)
        return {"correct": float(self._is_right), "turns": float(self.turns), "answered": answered}
