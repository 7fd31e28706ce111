"""Grade-school maths: the reply ends in `#### <number>`; the reward is 1 if the number is right,
else 0.

Only the line after the last `####` is read: a reply has one answer, its final one. The line starts
with the number; words may follow (`42 apples`), further digits may not (`42 or 43` is no answer).
Commas, `$`, spaces, a trailing `.`, markdown emphasis and trailing zeros do not matter: `$1,234.00`
is 1234. Comparison is exact, in decimals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import ClassVar

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies, plain
from rl_core.envs.registration import environments
from rl_core.errors import EnvError

_DECORATION = re.compile(r"\\(?:boxed|text)?\{|\\?\$|\\[(),!]|[*_`}]")
_GROUPING_SPACE = re.compile(r"(?<=[0-9])[ \u00a0\u202f](?=[0-9]{3}(?![0-9]))")
_LEADING_NUMBER = re.compile(
    r"\s*+=?+\s*+([-+]?+)\s*+([0-9][0-9,]*+(?:\.[0-9]++)?+|\.[0-9]++)([^0-9]*+)$"
)


def read_number(line: str) -> Decimal | None:
    """Read the one number that a line starts with; return None if there is none or more than
    one."""
    cleaned = _DECORATION.sub("", line).replace("\u2212", "-").strip()
    match = _LEADING_NUMBER.match(_GROUPING_SPACE.sub("", cleaned))
    if match:
        return Decimal(match[1] + match[2].replace(",", ""))
    return None


def read_answer(reply: str) -> Decimal | None:
    """Read the number on the first line after the last `####` of a reply; a closing `####` is
    ignored."""
    _, marker, tail = reply.rstrip("# \n\t\r").rpartition("####")
    lines = tail.strip().splitlines()
    if marker and lines:
        return read_number(lines[0])
    return None


def read_truth(value: object) -> Decimal:
    """Read one accepted answer: a number, its text, or a worked solution that ends in `####`.
    Raises: ValueError otherwise."""
    value = plain(value)
    if isinstance(value, str):
        number = read_answer(value) if "####" in value else read_number(value)
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = Decimal(repr(value)) if is_number else None
    if number is None or not number.is_finite():
        raise ValueError(f"{value!r} is not a number")
    return number


def read_truths(env: BaseTextEnv) -> list[Decimal]:
    """Return the accepted answers of an environment's row. Raises: EnvError when one of them is not
    a number."""
    answers = env.acceptable_answers
    try:
        return [read_truth(answer) for answer in answers]
    except ValueError as error:
        raise EnvError(
            f"{env.where}: reward_spec.ground_truth must be a number: {error}"
        ) from error


def other_number(truths: Sequence[Decimal]) -> Decimal:
    """Return a number that is none of the accepted answers."""
    return max(truths, key=abs) * 2 + 1


@environments.register("gsm8k")
class GSM8kEnv(BaseTextEnv):
    """Single-turn environment; reward 1.0 if the number after the last `####` equals the truth, or
    any of a list, else 0.0."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`; only the fields of the base class."""

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
        self._metrics: dict[str, float] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the reply; `metadata["answer"]` is the number read from it, as text, or None."""
        self.turns += 1
        answer = read_answer(action)
        reward = float(answer is not None and answer in self.truths)
        self._metrics = {"correct": reward, "answered": float(answer is not None)}
        metadata = {"answer": None if answer is None else str(answer)}
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=metadata)

    def oracle_replies(self) -> OracleReplies:
        """Return the truth and another number, each behind `####`."""
        return OracleReplies(f"#### {self.truths[0]:f}", f"#### {other_number(self.truths):f}")

    def get_metrics(self) -> dict[str, float]:
        """Return `correct` and `answered` (a well-formed answer), 0 or 1 each."""
        return dict(self._metrics)
