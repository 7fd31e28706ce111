"""Named sets of held-out rows that an evaluation measures in addition to those of `data.eval`."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from schemas.sections.sampling import EvaluationSampling

MAX_NAME = 100
MAX_SAMPLES = 4096


class SampledReplies(EvaluationSampling):
    """Choice of several replies to each prompt."""

    samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    """Replies to each prompt. With several, `avg@n`, `pass@k` and, where answers are read, `maj@n`
    are measured, with intervals over prompts."""
    part: int = Field(default=0, ge=0)
    """Number of the part of an evaluation; each part has its own random numbers."""


class EvaluationSet(EvaluationSampling):
    """Held-out rows with a name, measured by themselves and per `data_source`."""

    data: list[str | dict[str, Any]] = Field(min_length=1)
    """Rows of the set, written as in `data.eval`; training on their questions is refused."""
    samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    """Replies to each prompt. With several, `avg@n`, `pass@k` and, where answers are read, `maj@n`
    are measured, with intervals over prompts; needs a `temperature`."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Longest reply in tokens; unset takes that of `evaluation`."""
    at_ends_alone: bool = False
    """Measure the set before and after training alone, whatever `eval_every` says."""

    @model_validator(mode="after")
    def _samples_differ(self) -> "EvaluationSet":
        if self.samples > 1 and not self.temperature:
            raise ValueError(
                f"samples: {self.samples} greedy replies are one and the same: set temperature, or "
                "leave samples out"
            )
        return self

    def replies(self, part: int) -> SampledReplies:
        """Return the choice of replies for a part of the evaluation."""
        chosen = {name: getattr(self, name) for name in EvaluationSampling.model_fields}
        return SampledReplies(**chosen, samples=self.samples, part=part)


def check_set_name(name: str) -> None:
    """Check that a set can be named so. Raises: ValueError."""
    if not 0 < len(name) <= MAX_NAME or name != name.strip() or not name.isprintable():
        raise ValueError(
            f"{name!r:.120}: the name of a set has 1 to {MAX_NAME} printable characters and no "
            "space at its ends"
        )


ADDED: Mapping[str, object] = {
    "sets": {},
    "scorers": False,
    "pass_mark": None,
    "max_failed_share": 0.0,
    "teacher": False,
}
"""Keys of `evaluation`, and the defaults at which they are no part of a run's identity."""


def without_default_evaluation(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's values without the keys of `ADDED` at their default, so that a recipe that
    sets none has the identity that it had before there were any."""
    evaluation = values["evaluation"]
    kept = {}
    for key, one in evaluation.items():
        if key not in ADDED or one != ADDED[key]:
            kept[key] = one
    return {**values, "evaluation": kept}
