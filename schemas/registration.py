"""What becomes of a trained model, and what a scheduled retraining starts from."""

from enum import StrEnum

from pydantic import Field, model_validator

from schemas.section import Section


class Start(StrEnum):
    """The weights a retraining begins with."""

    BASE = "base"
    """Those of `model.path`: every training is from scratch, on all the data."""
    CHAMPION = "champion"
    """Those of the present champion, where there is one; needs an export that is a whole model."""


class GuardConfig(Section):
    """How much worse a new model may be in a score that does not decide. Give one of the two."""

    max_drop: float | None = Field(default=None, ge=0)
    """For scores that should be high: the mean may fall by no more than this."""
    max_rise: float | None = Field(default=None, ge=0)
    """For scores that should be low: the mean may rise by no more than this."""

    @model_validator(mode="after")
    def _one_direction(self) -> "GuardConfig":
        if (self.max_drop is None) == (self.max_rise is None):
            raise ValueError("give max_drop (the score should be high) or max_rise (it should be low), and only one")
        return self


class RegistrationConfig(Section):
    """What becomes of the trained model."""

    model_name: str | None = None
    """Name in the MLflow model registry; unset means `rl-train-<recipe name>`."""
    score: str = "accuracy"
    """What the champion is chosen by: `accuracy`, `mean_reward`, or another score of the domain's evaluation."""
    margin: float = Field(default=0.0, ge=0)
    """The champion alias moves only when the score exceeds the incumbent's by more than this."""
    confidence: float = Field(default=0.5, ge=0, lt=1)
    """And only when a paired bootstrap over the held-out rows is this sure of it; 0.5 is more likely than not."""
    guards: dict[str, GuardConfig] = Field(default_factory=dict)
    """And only when none of these scores got worse than allowed, such as `truncated_share: {max_rise: 0.02}`."""
    approval: bool = False
    """And only when a person agrees, in a form of the Prefect UI; a run without a server leaves it to `promote`."""


class RetrainingConfig(Section):
    """What a scheduled or triggered run does, beside what every run does."""

    start: Start = Start.BASE
    """The weights it begins with."""


class Retrain(StrEnum):
    """What a run does about what was trained before."""

    CONTINUE = "continue"
    """Go on with what the same recipe and data had reached; a run by hand does this, unless told otherwise."""
    WHEN_NEW = "when-new"
    """End at once unless data, code or recipe are new since the newest version; what schedules and triggers do."""
    ALWAYS = "always"
    """Train again, whether anything is new or not."""
