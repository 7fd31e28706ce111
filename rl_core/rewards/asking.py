"""Calls of one scorer for many samples: in batches, with retries, pauses and a deadline; a failure
never becomes a silent 0."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rl_core.envs.faults import described
from rl_core.errors import RecipeError, ServiceError
from rl_core.rewards.base import Given, Judged, Sample, Scorer, Unscored, checked_reward
from schemas.sections.rewards import RewardServiceConfig


@dataclass
class Scored:
    """Result of one scorer for a list of samples."""

    scores: list[float]
    """Score of each sample; NaN if there is none."""
    errors: list[str | None]
    """Reason why each sample has no score; None if it has one."""
    num_retried: int = 0
    """Number of samples that needed more than one try."""
    verdicts: dict[int, str] = field(default_factory=dict)
    """Words of a judge, by sample."""
    parts: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """Scores of single criteria, by sample."""
    refusal: ServiceError | RecipeError | None = None
    """Error that asking again does not heal."""

    @classmethod
    def none(cls, num_samples: int, reason: str) -> Scored:
        """Return a result without a score for any sample."""
        return cls([math.nan] * num_samples, [reason] * num_samples)


class Asking:
    """A scorer and its thread."""

    def __init__(self, key: str, scorer: Scorer, config: RewardServiceConfig) -> None:
        self.key, self.scorer, self.config = key, scorer, config
        self._thread: threading.Thread | None = None

    def start(self, samples: Sequence[Sample]) -> Question:
        """Start scoring samples, in a thread, after the scorer's earlier requests."""
        question = Question(self, samples)
        before, self._thread = (
            self._thread,
            threading.Thread(target=question.run, name=f"reward {self.key}", daemon=True),
        )
        question.before = before
        self._thread.start()
        return question


class Question:
    """Samples that are being scored."""

    def __init__(self, asking: Asking, samples: Sequence[Sample]) -> None:
        self.scorer, self.settings, self.samples = asking.scorer, asking.config, samples
        self.before: threading.Thread | None = None
        self.timeout_s = asking.scorer.config.timeout_s
        self._deadline = time.monotonic() + self.timeout_s
        self._found = Scored.none(len(samples), f"no score within {self.timeout_s:g} s")
        self._final: set[int] = set()
        self._ended = threading.Event()

    def result(self) -> Scored:
        """Wait until all samples are scored, all tries are used, or the deadline has passed."""
        self._ended.wait(max(0.0, self._deadline - time.monotonic()))
        found = self._found
        # A copy: a scorer that overruns may still write.
        return Scored(
            list(found.scores),
            list(found.errors),
            found.num_retried,
            dict(found.verdicts),
            dict(found.parts),
            found.refusal,
        )

    def run(self) -> None:
        """Call the scorer until no sample is left. An exception of the scorer becomes the reason of
        its samples."""
        if self.before is not None:
            self.before.join(max(0.0, self._deadline - time.monotonic()))
        left, pause_s = list(range(len(self.samples))), self.settings.backoff_s
        for attempt in range(self.settings.max_tries):
            if attempt:
                self._found.num_retried = max(self._found.num_retried, len(left))
                time.sleep(min(pause_s, max(0.0, self._deadline - time.monotonic())))
                pause_s *= 2
            # One by one in the end, so that a sample that breaks its batch breaks no other.
            alone = attempt > 0 and attempt + 1 == self.settings.max_tries
            self._ask(left, 1 if alone else self.scorer.config.batch_size)
            left = [row for row in left if self._found.errors[row] and row not in self._final]
            if not left or self._is_late or self._found.refusal is not None:
                break
        self._ended.set()

    def _ask(self, rows: list[int], batch_size: int) -> None:
        for first in range(0, len(rows), batch_size):
            if self._is_late:
                return
            batch = rows[first : first + batch_size]
            for row, answer in zip(batch, self._answers(batch), strict=True):
                self._note(row, answer)
            if self._found.refusal is not None:
                return

    def _answers(self, rows: list[int]) -> Sequence[Given]:
        try:
            answers = list(self.scorer.score([self.samples[row] for row in rows]))
            if len(answers) != len(rows):
                raise ValueError(f"{len(answers)} scores for {len(rows)} samples")
            return [_checked(answer) for answer in answers]
        except Exception as error:  # the samples carry the reason on
            if isinstance(error, ServiceError | RecipeError):
                self._found.refusal = error
            return [Unscored(described(error))] * len(rows)

    def _note(self, row: int, answer: Given) -> None:
        found = self._found
        if isinstance(answer, Unscored):
            found.scores[row], found.errors[row] = math.nan, answer.reason
            if answer.final:
                self._final.add(row)
        elif isinstance(answer, Judged):
            found.scores[row], found.errors[row] = answer.score, None
            found.parts[row] = answer.parts
        else:
            found.scores[row], found.errors[row] = answer, None
        if isinstance(answer, Judged | Unscored) and answer.verdict is not None:
            found.verdicts[row] = answer.verdict

    @property
    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline


def _checked(answer: Given) -> Given:
    if isinstance(answer, Unscored):
        return answer
    is_judged = isinstance(answer, Judged)
    try:
        score = checked_reward(answer.score if is_judged else answer)
    except ValueError as error:
        return Unscored(f"the score is {error}")
    if is_judged:
        return replace(answer, score=score)
    return score
