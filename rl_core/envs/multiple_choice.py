r"""Multiple-choice questions: the reply names one letter, in `\boxed{}`.

The letter may have brackets, a full stop, `\text{}`, or its option's own words (`B. Paris`). Boxes
after the thinking count, and they must all hold the same letter: naming several options is no
answer. The truth is a letter, or the words of an option.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any, ClassVar

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies, plain
from rl_core.envs.registration import environments
from rl_core.envs.tools.answers import all_boxed
from rl_core.envs.tools.code import after_thinking
from rl_core.errors import EnvError

_WRAPPER = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mathsf|boldsymbol)\s*\{([^{}]*)\}")
MAX_WRAPPERS = 8
"""Commands such as `\\text{}` around each other that are read through."""
_LETTER = re.compile(
    r"(?:option|choice|answer)?\s*+:?+\s*+[(\[]?+\s*+([A-Za-z])\s*+[)\]]?+\s*+[.:,]?+",
    re.IGNORECASE,
)


@environments.register("multiple_choice")
class MultipleChoiceEnv(BaseTextEnv):
    """Single-turn environment; reward 1.0 if the one boxed letter is right, else 0.0."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`; only the fields of the base class."""

    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string"})

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row.

        Raises: EnvError when the row's truth is neither a letter nor an option, or a letter that is
        not among the options.
        """
        super().__init__(env_config, extras)
        self.options = _options(self.row_value("options", "choices"))
        truth = str(self.ground_truth)
        same = [letter for letter, text in self.options.items() if _words(text) == _words(truth)]
        letter = read_letter(truth, self.options) or (same[0] if len(same) == 1 else None)
        if letter is None or (self.options and letter not in self.options):
            offered = ", ".join(self.options) or "a letter"
            raise EnvError(
                f"{self.where}: reward_spec.ground_truth must be one of {offered}, got {truth!r}"
            )
        self.letter = letter
        self._metrics: dict[str, float] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the reply; `metadata["answer"]` is the letter, or None if there is none or more
        than one."""
        self.turns += 1
        letters = set()
        for text in all_boxed(after_thinking(action)):
            letters.add(read_letter(text, self.options))
        answer = letters.pop() if len(letters) == 1 else None
        reward = float(answer == self.letter)
        self._metrics = {"correct": reward, "answered": float(answer is not None)}
        return BaseTextEnvStepOutput(
            observations=[], reward=reward, done=True, metadata={"answer": answer}
        )

    def oracle_replies(self) -> OracleReplies:
        r"""Return the right letter and another one, each in `\boxed{}`."""
        letters = list(self.options) or list(string.ascii_uppercase)
        wrong = next((letter for letter in letters if letter != self.letter), "")
        return OracleReplies(f"\\boxed{{{self.letter}}}", f"\\boxed{{{wrong}}}")

    def get_metrics(self) -> dict[str, float]:
        """Return `correct` and `answered`, 0 or 1 each."""
        return dict(self._metrics)


def read_letter(text: str, options: Mapping[str, str]) -> str | None:
    """Read the one letter that a text names, in upper case; any words after it must be that
    option's own."""
    for _ in range(MAX_WRAPPERS):
        text = _WRAPPER.sub(r"\1", text)
    text = re.sub(r"\\[ ,;!]|[$*`]", "", text).strip()
    match = _LETTER.match(text)
    if match is None:
        return None
    letter, rest = match[1].upper(), text[match.end() :]
    if not rest.strip():
        return letter
    if rest[:1].isalpha() and text[match.end() - 1].isalpha():
        return None
    if letter in options and _words(rest) == _words(options[letter]):
        return letter
    return None


def _options(value: Any) -> dict[str, str]:
    value = plain(value)
    if isinstance(value, Mapping):
        return {
            str(key).strip("(). ").upper(): str(text)
            for key, text in value.items()
            if text is not None
        }
    texts = [str(text) for text in value or []]
    # Options may be written with their letters: "A. Rome".
    marked = []
    for letter, text in zip(string.ascii_uppercase, texts, strict=False):
        marked.append(re.match(rf"\(?{letter}[).:]\s*", text))
    cut = [mark.end() for mark in marked if mark] if texts and all(marked) else [0] * len(texts)
    return {
        letter: text[start:]
        for letter, text, start in zip(string.ascii_uppercase, texts, cut, strict=False)
    }


def _words(text: str) -> str:
    return re.sub(r"[\s.]+", " ", text).strip().casefold()
