"""A rubric: several criteria, each judged by itself, and their weighted mean.

Criteria stand in the recipe, or in a column of the row: a list of texts, of `{"name", "question",
"weight"}`, or a mapping of names to questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from rl_core.errors import RecipeError
from rl_core.rewards.base import Given, Judged, Modality, Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.judging.fences import harmless
from rl_core.rewards.judging.panel import Panel, Verdict
from rl_core.rewards.judging.settings import Example, JudgeSettings
from rl_core.rewards.judging.templates import OWN, ROW, Template, shown
from rl_core.rewards.scorers.judge import FIELDS, TEMPLATES, Mode
from rl_core.runtime.registry import describe_validation_error
from schemas.sections.section import Section

MAX_NAME = 200


class Criterion(Section):
    """One question of a rubric."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    """Name of the criterion in metrics and stored verdicts: any printable characters."""
    question: str = Field(min_length=1)
    """Question to the judge about the reply."""
    weight: float = Field(default=1.0, gt=0)
    """Weight in the mean."""
    examples: list[Example] | None = None
    """Verdicts on this criterion that the judge is shown; unset takes those of the rubric."""

    @field_validator("name")
    @classmethod
    def _can_be_read(cls, value: str) -> str:
        if not value.isprintable() or value != value.strip():
            raise ValueError("a name has printable characters, and no space at its ends")
        return value


@reward_scorers.register("rubric")
class RubricScorer(Scorer):
    """Weighted mean of a judge's verdicts on several criteria, 0 to 1 on a `scale` or in the values
    of `labels`."""

    class Config(JudgeSettings):
        """Settings of the judge and its criteria."""

        criteria: list[Criterion] = Field(default_factory=list)
        """Criteria of all rows: `{name: ..., question: ..., weight: ...}` each."""
        column: str | None = Field(default=None, pattern=r"^row\..+")
        """Column of a row with criteria of its own, such as `row.rubric`."""
        template: str = TEMPLATES[Mode.POINTWISE]
        """Prompt of the judge for one criterion, with its text in `{question}`; fields as those of
        the scorer `judge`."""

        @model_validator(mode="after")
        def _asks_something(self) -> Self:
            if not self.criteria and self.column is None:
                raise ValueError("give criteria, or column with the criteria of each row")
            names = [criterion.name for criterion in self.criteria]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"criteria: the name {twice[0]!r} is there twice")
            try:
                _ = self.prompt
            except ValueError as error:
                raise ValueError(f"template: {error}") from error
            return self

        @property
        def prompt(self) -> Template:
            """The template, taken apart."""
            return Template.read(self.template, (*FIELDS, *OWN), ("reply", "question"))

    config: Config
    modalities = frozenset({Modality.TEXT})

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.panel = Panel(config, device)

    def score(self, samples: Sequence[Sample]) -> Sequence[Given]:
        """Score samples; one that lacks the verdict on a criterion is unscored. Raises:
        ServiceError, RecipeError."""
        form, prompt = self.config.instruction(self.config.values), self.config.prompt
        asked = [(sample, one) for sample in samples for one in self._criteria(sample)]
        questions = []
        for sample, one in asked:
            own = {"question": one.question, "form": form}
            before = shown(
                self.config.examples if one.examples is None else one.examples, prompt, own
            )
            questions.append((*before, prompt.filled(sample, own, {})))
        found = iter(self.panel.verdicts(questions))
        scores = []
        for sample in samples:
            scores.append(_weighed([(one, next(found)) for one in self._criteria(sample)]))
        return scores

    def counts(self) -> dict[str, float]:
        """Return requests, cached answers, tokens, cost, and verdicts that could not be read."""
        return self.panel.counts.taken()

    def close(self) -> None:
        """Release the judge."""
        self.panel.close()

    def _criteria(self, sample: Sample) -> list[Criterion]:
        if self.config.column is None:
            return self.config.criteria
        found: Any = sample.metadata
        for part in self.config.column.removeprefix(ROW).split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return [*self.config.criteria, *read_criteria(found, self.config.column, sample.prompt)]


def read_criteria(value: Any, column: str, prompt: str) -> list[Criterion]:
    """Return the criteria that a column of a row holds.

    A row's words are data: no control token of theirs reaches the judge. Raises: RecipeError naming
    the row and what would be right.
    """
    where = f"{column} of the row with the prompt {prompt[:60]!r}"
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        value = [{"name": name, "question": question} for name, question in value.items()]
    if not isinstance(value, list | tuple) or not value:
        raise RecipeError(
            f"{where}: expected a list of criteria (a text, or name, question and weight), got "
            f"{value!r:.80}"
        )
    found = []
    for place, one in enumerate(value):
        given = {"name": one, "question": one} if isinstance(one, str) else one
        if not isinstance(given, Mapping):
            raise RecipeError(f"{where}: [{place}]: expected a text or an object, got {one!r:.80}")
        kept: dict[str, Any] = {key: one for key, one in given.items() if one is not None}
        if isinstance(kept.get("question"), str):
            kept["question"] = harmless(kept["question"])
            kept.setdefault("name", kept["question"])
        if isinstance(kept.get("name"), str):
            kept["name"] = " ".join(harmless(kept["name"]).split())[:MAX_NAME].strip()
        try:
            found.append(Criterion(**kept))
        except ValidationError as error:
            said = describe_validation_error(error, f"[{place}]", Criterion)
            raise RecipeError(f"{where}: {said}") from error
    return found


def _weighed(verdicts: Sequence[tuple[Criterion, Verdict]]) -> Given:
    text = "\n".join(
        f"{one.name}: {found.reason if math.isnan(found.value) else f'{found.value:.4g}'}"
        f" ({found.text})"
        for one, found in verdicts
    )
    lost = [(one, found) for one, found in verdicts if math.isnan(found.value)]
    if lost:
        one, first = lost[0]
        return Unscored(f"{one.name}: {first.reason}", text, all(each.final for _, each in lost))
    total = math.fsum(one.weight for one, _ in verdicts)
    score = math.fsum(one.weight * found.value for one, found in verdicts) / total
    return Judged(score, text, {one.name: found.value for one, found in verdicts})
