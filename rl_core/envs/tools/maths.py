r"""Mathematical equality of two answers, decided by `math-verify` in a separate process with a
deadline.

The library parses LaTeX with sympy, and an answer like `10^{10^{10}}` would keep it busy for ever;
it can only be interrupted in a main thread, and environments step in others. Comparisons that need
no algebra are decided here.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

from rl_core.envs.tools.shared import Shared
from rl_core.envs.tools.workers.worker_pool import WorkerOverran, WorkerPool

MAX_CHARACTERS = 1000
TIMEOUT_S = 5.0
WRONG_NUMBER = "-982451653.75"
"""A number that is hardly anybody's answer, for wrong replies."""

_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?\.?|[-+]?\.[0-9]+")
_WORD = re.compile(r"[A-Za-z][A-Za-z '\-]{2,}")


class MathVerifier:
    """Compares answers. Thread-safe; its processes start when first needed."""

    def __init__(self, _key: None = None) -> None:
        self._workers = WorkerPool(
            str(Path(__file__).parent / "workers/math_worker.py"), max_workers=2
        )

    def same(self, truth: str, answer: str) -> bool:
        """Return True if `answer` equals `truth`. An answer that cannot be read, or takes too long
        to read, does not."""
        truth, answer = _bare(truth), _bare(answer)
        if not truth or not answer or len(answer) > MAX_CHARACTERS:
            return False
        if truth == answer:
            return True
        numbers = _number(truth), _number(answer)
        if numbers[0] is not None and numbers[0] == numbers[1]:
            return True
        if all(number is not None and number == number.to_integral_value() for number in numbers):
            return False
        word = _word(truth)
        if word is not None:
            # As algebra a word is a product of letters, equal to each of its anagrams.
            return word == _word(answer)
        try:
            return self._workers.ask((truth, answer), TIMEOUT_S)
        except WorkerOverran:
            return False

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


math_verifiers: Shared[None, MathVerifier] = Shared(MathVerifier)
"""The verifier of this process, with one comparing process."""


def _bare(text: str) -> str:
    text = text.strip().strip("$").strip()
    if text[:2] in (r"\(", r"\[") and text[-2:] in (r"\)", r"\]"):
        return text[2:-2].strip()
    return text


def _number(text: str) -> Decimal | None:
    if _NUMBER.fullmatch(text):
        return Decimal(text.replace(",", "").rstrip("."))
    return None


def _word(text: str) -> str | None:
    inner = re.fullmatch(r"\\(?:text|textbf|mathrm)\{([^{}]*)\}", text)
    text = (inner[1] if inner else text).strip().rstrip(".")
    if _WORD.fullmatch(text):
        return text.casefold()
    return None
