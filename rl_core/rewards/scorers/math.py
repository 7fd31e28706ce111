r"""Mathematical equality of the last reply's answer and the row's truth, by `math-verify`.

A truth that is a list holds alternatives. Only the model's own last reply is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rl_core.envs.base import plain
from rl_core.envs.tools.answers import AnswerPlace, read_answer
from rl_core.envs.tools.maths import MathVerifier, math_verifiers
from rl_core.envs.tools.shared import leased
from rl_core.rewards.base import Modality, Sample, Scorer, Unscored, reward_scorers


@reward_scorers.register("math")
class MathScorer(Scorer):
    """1.0 when the answer equals the truth, else `wrong`."""

    class Config(Scorer.Config):
        """Settings of the math scorer."""

        answer: AnswerPlace = AnswerPlace.BOXED
        """Place of the answer in the reply."""
        wrong: float = 0.0
        """Score of a wrong or missing answer."""
        max_truths: int = Field(default=32, ge=1)
        """Maximum number of alternative truths that are compared."""

    config: Config
    modalities = frozenset({Modality.TEXT})

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score samples; those without a truth are unscored."""
        with leased(math_verifiers) as verifier:
            return [self._one(sample, verifier) for sample in samples]

    def _one(self, sample: Sample, verifier: MathVerifier) -> float | Unscored:
        truths = _truths(sample.ground_truth)
        if not truths:
            return Unscored(
                f"the row has no ground truth to compare with, but {sample.ground_truth!r:.80}"
            )
        answer = read_answer(sample.text, self.config.answer)
        if answer is None:
            return self.config.wrong
        found = any(verifier.same(truth, answer) for truth in truths[: self.config.max_truths])
        return 1.0 if found else self.config.wrong


def _truths(given: object) -> list[str]:
    value = plain(given)
    if isinstance(value, dict):
        return _truths(value.get("target"))
    if isinstance(value, list | tuple):
        return [truth for one in value for truth in _truths(one)]
    if value is None or isinstance(value, bool):
        return []
    return [str(value)] if str(value).strip() else []
