"""A judge and what stands around it: equal questions asked once, votes, counts, kept answers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from rl_core.rewards.judging.answer_cache import AnswerCache
from rl_core.rewards.judging.requests import Answer, Answering, NoAnswer, Request
from rl_core.rewards.judging.settings import LOCAL_TOKENS, JudgeSettings
from rl_core.rewards.judging.verdicts import (
    Reading,
    Unreadable,
    expected_value,
    from_json,
    matched,
    value_of_words,
)
from rl_core.runtime.home import Home
from rl_core.runtime.registry import import_target

LOCAL_JUDGE = "rl_core.rollout.judge_model:LocalJudge"
"""Class of a judge in process. It decodes, and so lies in a layer above this one."""
Question: TypeAlias = tuple[str, ...]
"""Prompt of a judge, after earlier prompts and verdicts in turn."""
ANSWERS_FILE = "judge-answers.sqlite"


@dataclass(frozen=True)
class Verdict:
    """A judge's verdict on one question."""

    value: float
    """Mean over the votes; NaN if none can be read."""
    text: str
    """Words of the judge, vote by vote."""
    reason: str = ""
    """Reason why there is no value."""
    final: bool = False
    """True if asking again would end the same."""


class Panel:
    """The judge of a scorer."""

    def __init__(self, settings: JudgeSettings, device: str) -> None:
        """Reach or load the judge.

        Raises: ModelError when a judge in process cannot be loaded.
        """
        self.settings = settings
        if settings.url is not None:
            from rl_core.rewards.judging.served import ServedJudge

            self.judge: Answering = ServedJudge(settings)
        else:
            self.judge = import_target(LOCAL_JUDGE)(settings.model, device)
        self.counts = self.judge.counts
        self._cache = None
        if settings.max_cached:
            self._cache = AnswerCache(Home.default().cache / ANSWERS_FILE, settings.max_cached)

    def verdicts(
        self, questions: Sequence[Question], labels: dict[str, float] | None = None
    ) -> list[Verdict]:
        """Return the verdict on each question, in order.

        Args: questions: a prompt, after earlier prompts and verdicts in turn. labels: words of a
        verdict and their values; unset takes those of the settings.
        Raises: ServiceError when the judge refuses; StorageError.
        """
        values = self.settings.values if labels is None else labels
        ballots = [self._ballot(question, values) for question in questions]
        asked = list(dict.fromkeys(one for ballot in ballots for one in ballot))
        answers = dict(zip(asked, self._answers(asked, values), strict=True))
        counted: list[Verdict] = []
        for ballot in ballots:
            counted.append(self._counted([answers[one] for one in ballot], values))
        return counted

    def close(self) -> None:
        """Release the judge and the kept answers."""
        self.judge.close()
        if self._cache is not None:
            self._cache.close()

    def _ballot(self, question: Question, values: dict[str, float] | None) -> list[Request]:
        settings = self.settings
        reads_token = settings.read is Reading.LOG_PROB
        system = [("system", settings.system)] if settings.system else []
        turns = []
        for place, text in enumerate(question):
            turns.append((("user", "assistant")[place % 2], text))
        request = Request(
            messages=(*system, *turns),
            max_tokens=settings.max_tokens or (1 if reads_token else LOCAL_TOKENS),
            temperature=settings.temperature,
            seed=settings.seed,
            labels=tuple(values or ()) if reads_token else (),
        )
        return [replace(request, seed=settings.seed + vote) for vote in range(settings.votes)]

    def _answers(
        self, requests: Sequence[Request], values: dict[str, float] | None
    ) -> list[Answer | NoAnswer]:
        digests = [request.digest(self.judge.identity) for request in requests]
        known = {} if self._cache is None else self._cache.found(digests)
        missing = [place for place, digest in enumerate(digests) if digest not in known]
        self.counts.add("cached", len(requests) - len(missing))
        self.counts.add("requests", len(missing))
        given: dict[str, Answer | NoAnswer] = dict(known)
        fresh = self.judge.answer([requests[place] for place in missing]) if missing else []
        given |= {digests[place]: one for place, one in zip(missing, fresh, strict=True)}
        self._spent([one for one in fresh if isinstance(one, Answer)])
        heard = {}
        for place, one in zip(missing, fresh, strict=True):
            if isinstance(one, Answer) and self._is_readable(one, values):
                heard[digests[place]] = one
        if self._cache is not None and heard:
            self._cache.keep(heard)
        return [given[digest] for digest in digests]

    def _spent(self, answers: Sequence[Answer]) -> None:
        read = sum(one.input_tokens for one in answers)
        written = sum(one.output_tokens for one in answers)
        self.counts.add("input_tokens", read)
        self.counts.add("output_tokens", written)
        cost = read * self.settings.price_in + written * self.settings.price_out
        self.counts.add("cost", cost / 1e6)

    def _counted(
        self, answers: Sequence[Answer | NoAnswer], values: dict[str, float] | None
    ) -> Verdict:
        found: list[float] = []
        texts: list[str] = []
        reasons: list[str] = []
        for answer in answers:
            if isinstance(answer, NoAnswer):
                reasons.append(answer.reason)
                continue
            texts.append(answer.text)
            try:
                found.append(self._read(answer, values))
            except Unreadable as error:
                self.counts.add("unreadable")
                reasons.append(str(error))
        text = "\n".join(texts)
        if not found:
            lost = [one for one in answers if isinstance(one, NoAnswer)]
            final = all(one.final for one in lost) and (bool(lost) or self.judge.repeats)
            return Verdict(math.nan, text, reasons[0], final)
        return Verdict(math.fsum(found) / len(found), text)

    def _is_readable(self, answer: Answer, values: dict[str, float] | None) -> bool:
        try:
            self._read(answer, values)
        except Unreadable:
            return False
        return True

    def _read(self, answer: Answer, values: dict[str, float] | None) -> float:
        settings = self.settings
        if settings.read is Reading.LOG_PROB:
            return expected_value(answer, values or {})
        if settings.read is Reading.JSON:
            words = from_json(answer.text, settings.json_key)
        else:
            words = matched(answer.text, re.compile(settings.pattern))
        return value_of_words(words, values, settings.scale)
