"""Registration of a trained model, and the initial weights of a scheduled retraining."""

from enum import StrEnum

from pydantic import ConfigDict, Field, field_validator, model_validator

from schemas.sections.section import Section

_MAX_MODEL_NAME = 256


class Start(StrEnum):
    """Initial weights of a retraining."""

    BASE = "base"
    """The weights at `model.path`: every training starts from scratch, on all the data."""
    CHAMPION = "champion"
    """The weights of the current champion, if there is one; needs an export that is a whole
    model."""


class Weights(StrEnum):
    """Iteration of a run that is exported, evaluated and registered."""

    LAST = "last"
    """The last one."""
    BEST = "best"
    """The last one, unless an earlier one that was evaluated is better beyond doubt: the 95 %
    interval of its lead in `score` on the same rows excludes 0. Needs `evaluation.eval_every`."""


class GuardConfig(Section):
    """Limit on how much worse a new model may be in a score that does not decide. Set one of the
    two fields."""

    max_drop: float | None = Field(default=None, ge=0)
    """For scores where high is good: largest allowed fall of the mean."""
    max_rise: float | None = Field(default=None, ge=0)
    """For scores where low is good: largest allowed rise of the mean."""

    @model_validator(mode="after")
    def _one_direction(self) -> "GuardConfig":
        if (self.max_drop is None) == (self.max_rise is None):
            raise ValueError(
                "give max_drop (the score should be high) or max_rise (it should be low), and "
                "only one"
            )
        return self


class RegistrationConfig(Section):
    """Registration of the trained model, and conditions for its promotion to champion."""

    model_config = ConfigDict(serialize_by_alias=True)

    model_name: str | None = None
    """Name in the MLflow model registry, without `/`, `:`, `@` and `"`; unset means
    `rl-train-<recipe name>`."""
    from_: Weights = Field(default=Weights.LAST, alias="from")
    """Iteration that is registered: `last` or `best`."""
    set: str | None = None
    """Name of the set in `evaluation.sets` whose prompts decide on the champion; unset takes the
    rows of `data.eval`."""
    score: str = "accuracy"
    """Score that decides on the champion: `accuracy`, `mean_reward`, another score of the domain's
    evaluation, or a measure of the set, such as `pass@4`. Where rewards are graded, `mean_reward`
    takes the place of `accuracy`."""
    margin: float = Field(default=0.0, ge=0)
    """Margin by which the score must exceed the incumbent's before the champion alias moves."""
    confidence: float = Field(default=0.5, ge=0, lt=1)
    """Confidence that a paired bootstrap over the held-out rows must have in the improvement; 0.5
    means more likely than not."""
    guards: dict[str, GuardConfig] = Field(default_factory=dict)
    """Scores that must not get worse than allowed, for example `truncated_share: {max_rise:
    0.02}`."""
    approval: bool = False
    """Ask a person in a form of the Prefect UI before the champion alias moves; a run without a
    server leaves this to `promote`."""

    @field_validator("model_name")
    @classmethod
    def _registry_takes_it(cls, name: str | None) -> str | None:
        # MLflow says so only when the training is over.
        if name is None:
            return None
        refused = next((one for one in name if one in '/:@"' or not one.isprintable()), None)
        if refused is not None:
            raise ValueError(f"a model's name has no {refused!r}")
        if not 0 < len(name) <= _MAX_MODEL_NAME or name != name.strip() or name in (".", ".."):
            raise ValueError(
                f"a model's name has 1 to {_MAX_MODEL_NAME} characters, no space at its ends, and "
                "is not . or .."
            )
        return name


class RetrainingConfig(Section):
    """Additional settings of scheduled and triggered runs."""

    start: Start = Start.BASE
    """Initial weights of a retraining."""


class Retrain(StrEnum):
    """Treatment of earlier runs with the same recipe and data."""

    CONTINUE = "continue"
    """Continue from where a run of the same recipe and data ended; the default of runs started by
    hand."""
    WHEN_NEW = "when-new"
    """End at once unless data, code or recipe changed since the newest version; the default of
    schedules and triggers."""
    ALWAYS = "always"
    """Train again, even if nothing changed."""
