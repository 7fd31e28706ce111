"""A language model as a judge: how good a reply is by itself, beside a reference answer, or against
the other replies of its group.

Compared pairwise, two replies are shown in both orders. Where the judge prefers the same place
twice, and so two different replies, it is a tie. A reply's score is its mean over its opponents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from rl_core.rewards.base import Given, Judged, Modality, Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.judging.panel import Panel, Question, Verdict
from rl_core.rewards.judging.settings import JudgeSettings
from rl_core.rewards.judging.templates import OWN, ROW, Template, shown, value_of
from rl_core.rewards.judging.verdicts import DIGITS, Reading

FIELDS = ("prompt", "reply", "reference")
TIE = 0.5


class Mode(StrEnum):
    """Company in which a reply is judged."""

    POINTWISE = "pointwise"
    """Nothing: how good it is."""
    REFERENCE = "reference"
    """The row's reference answer, its ground truth."""
    PAIRWISE = "pairwise"
    """Other replies: the share of them that it beats."""


QUESTIONS = {
    Mode.POINTWISE: "How good is the reply to the request?",
    Mode.REFERENCE: "How well does the reply agree with the reference answer?",
    Mode.PAIRWISE: "Which reply to the request is better, A or B?",
}
TEMPLATES = {
    Mode.POINTWISE: "Request:\n{prompt}\n\nReply:\n{reply}\n\n{question} {form}",
    Mode.REFERENCE: (
        "Request:\n{prompt}\n\nReference answer:\n{reference}\n\nReply:\n{reply}\n\n"
        "{question} {form}"
    ),
    Mode.PAIRWISE: (
        "Request:\n{prompt}\n\nReply A:\n{first}\n\nReply B:\n{second}\n\n{question} {form}"
    ),
}
NEEDED = {
    Mode.POINTWISE: ("reply",),
    Mode.REFERENCE: ("reply", "reference"),
    Mode.PAIRWISE: ("first", "second"),
}


@reward_scorers.register("judge")
class JudgeScorer(Scorer):
    """A language model's verdict: 0 to 1 on a `scale`, the values of `labels`, or the share of
    opponents that a reply beats."""

    class Config(JudgeSettings):
        """Settings of the judge and of what it is asked."""

        mode: Mode = Mode.POINTWISE
        """Company in which a reply is judged: `pointwise`, `reference` or `pairwise`."""
        question: str | None = None
        """Question to the judge, for `{question}` in the template; unset fits `mode`."""
        template: str | None = None
        """Prompt of the judge with fields in braces: `{prompt}`, `{reply}`, `{reference}`,
        `{row.name}`, `{question}`, `{form}`; pairwise `{first}` and `{second}` for the reply. Unset
        fits `mode`."""
        against: str = "siblings"
        """With `mode: pairwise`: opponents of a reply: `siblings`, the `first` reply of the group,
        `reference`, or `row.name` for a column of the row."""
        max_opponents: int | None = Field(default=None, ge=1)
        """With `against: siblings`: most opponents of a reply, those after it in its group; unset
        means all."""
        swap: bool = True
        """With `mode: pairwise`: ask in both orders; a verdict that turns with them is a tie."""

        @model_validator(mode="after")
        def _prompt_can_be_made(self) -> Self:
            try:
                _ = self.prompt
            except ValueError as error:
                raise ValueError(f"template: {error}") from error
            own = self.against in ("siblings", "first", "reference")
            if not (own or (self.against.startswith(ROW) and self.against != ROW)):
                raise ValueError(
                    "against: give siblings, first, reference or row.<column>, got "
                    f"{self.against!r}"
                )
            for name in ("labels", "examples"):
                if self.mode is Mode.PAIRWISE and getattr(self, name):
                    raise ValueError(
                        f"{name}: the verdicts of mode: pairwise are A and B of two replies; leave "
                        "it out"
                    )
            return self

        @property
        def prompt(self) -> Template:
            """The template, taken apart."""
            two = ("first", "second") if self.mode is Mode.PAIRWISE else ()
            known = (*FIELDS, *OWN) if not two else ("prompt", "reference", *two, *OWN)
            text = TEMPLATES[self.mode] if self.template is None else self.template
            return Template.read(text, known, NEEDED[self.mode])

    config: Config
    modalities = frozenset({Modality.TEXT})

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.panel = Panel(config, device)
        question = QUESTIONS[config.mode] if config.question is None else config.question
        self.labels = None
        if config.mode is Mode.PAIRWISE:
            self.labels = {"A": 1.0, "B": 0.0}
            if config.read is not Reading.LOG_PROB:
                self.labels |= {"tie": TIE}
        form = config.instruction(self.labels or config.values)
        self.own = {"question": question, "form": form}

    def score(self, samples: Sequence[Sample]) -> Sequence[Given]:
        """Score samples. Raises: ServiceError when the judge's server refuses; RecipeError when a
        row lacks a field of the template."""
        if self.config.mode is Mode.PAIRWISE:
            return self._compared(samples)
        prompt = self.config.prompt
        before = shown(self.config.examples, prompt, self.own)
        questions = []
        for sample in samples:
            questions.append((*before, prompt.filled(sample, self.own, {})))
        return [_given(one) for one in self.panel.verdicts(questions)]

    def counts(self) -> dict[str, float]:
        """Return requests, cached answers, tokens, cost, and verdicts that could not be read or
        turned with the order."""
        return self.panel.counts.taken()

    def close(self) -> None:
        """Release the judge."""
        self.panel.close()

    def _compared(self, samples: Sequence[Sample]) -> Sequence[Given]:
        opponents = [self._opponents(sample) for sample in samples]
        prompt = self.config.prompt
        asked: dict[tuple[int, str, bool], Question] = {}
        for place, (sample, others) in enumerate(zip(samples, opponents, strict=True)):
            for other in dict.fromkeys(others):
                if other == sample.text:
                    continue
                for is_first in (True, False) if self.config.swap else (True,):
                    pair = (sample.text, other) if is_first else (other, sample.text)
                    texts = {"first": pair[0], "second": pair[1]}
                    asked[place, other, is_first] = (prompt.filled(sample, self.own, texts),)
        verdicts = self.panel.verdicts(list(asked.values()), self.labels)
        found = dict(zip(asked, verdicts, strict=True))
        given: list[Given] = []
        for place, (sample, others) in enumerate(zip(samples, opponents, strict=True)):
            bouts = [self._bout(place, sample, other, found) for other in others]
            given.append(_mean(bouts))
        return given

    def _opponents(self, sample: Sample) -> list[str]:
        against, group, place = self.config.against, sample.group, sample.place
        if against == "siblings":
            others = [*group[place + 1 :], *group[:place]]
            return others[: self.config.max_opponents]
        if against == "first" and group:
            return [group[0]]
        return self._anchor(sample)

    def _anchor(self, sample: Sample) -> list[str]:
        if self.config.against == "first":
            return []
        return [value_of(sample, self.config.against)]

    def _bout(
        self,
        place: int,
        sample: Sample,
        other: str,
        found: dict[tuple[int, str, bool], Verdict],
    ) -> Verdict:
        """Return the verdict on a reply against another: 1 if it is better."""
        if other == sample.text:
            return Verdict(TIE, "the same text")
        ahead = found[place, other, True]
        if not self.config.swap:
            return ahead
        behind = found[place, other, False]
        text = f"first: {ahead.text} | second: {behind.text}"
        if math.isnan(ahead.value) or math.isnan(behind.value):
            lost = ahead if math.isnan(ahead.value) else behind
            return Verdict(math.nan, text, lost.reason, lost.final)
        wins = ahead.value, 1.0 - behind.value
        if (wins[0] - TIE) * (wins[1] - TIE) < 0:
            self.panel.counts.add("disagreed")
            return Verdict(TIE, f"{text} (a tie: the verdict turns with the order)")
        return Verdict(round(math.fsum(wins) / 2, DIGITS), text)


def _given(verdict: Verdict) -> Given:
    if math.isnan(verdict.value):
        return Unscored(verdict.reason, verdict.text or None, verdict.final)
    return Judged(verdict.value, verdict.text)


def _mean(bouts: Sequence[Verdict]) -> Given:
    """Return the mean over the opponents that have a verdict."""
    if not bouts:
        return Unscored("there is no other reply to compare with", final=True)
    known = [bout.value for bout in bouts if not math.isnan(bout.value)]
    text = "\n".join(bout.text for bout in bouts)
    if not known:
        return Unscored(bouts[0].reason, text, all(bout.final for bout in bouts))
    return Judged(math.fsum(known) / len(known), text)
