"""Length of a training, sizes of its steps, its evaluations, and the checks of its rows."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from schemas.sections.checks.numbers import Seconds
from schemas.sections.evaluation_sets import EvaluationSet, check_set_name
from schemas.sections.sampling import EvaluationSampling
from schemas.sections.section import Section


class OnNoSignal(StrEnum):
    """Action when every advantage was 0 for several steps in a row."""

    WARN = "warn"
    """It says so, with three replies, and goes on."""
    STOP = "stop"
    """It says so and ends; finished iterations stay."""


class TrainingConfig(Section):
    """Length of the training and sizes of its steps.

    More than one optimizer step per rollout needs an algorithm that corrects for the change of the
    policy (`supports_multi_update`); the old policy is then frozen once, before the first of these
    steps.
    """

    former_keys: ClassVar[Mapping[str, str]] = {
        "num_mini_batches": (
            "use num_updates_per_batch for the optimiser steps one rollout is cut into, and "
            "num_epochs for passes over all its rows"
        )
    }

    num_iterations: int = Field(default=4, ge=1)
    """Number of train-iteration tasks; each ends with a complete checkpoint."""
    steps_per_iteration: int = Field(default=5, ge=1)
    """Training steps in one iteration."""
    prompts_per_step: int = Field(default=8, ge=1)
    """Number of different prompts in one rollout."""
    num_updates_per_batch: int = Field(default=1, ge=1)
    """Disjoint mini-batches that one rollout is split into, with an optimizer step for each."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over all rows of one rollout, each of `num_updates_per_batch` optimizer steps."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Global norm to which gradients are clipped."""
    skip_zero_advantages: bool = True
    """Leave samples whose advantages are all 0, such as those of a group of equal rewards, out of
    the training passes that they do not change. Metrics of those passes (entropy, ratios, clipping)
    then cover only the other samples."""
    on_no_signal: OnNoSignal = OnNoSignal.WARN
    """Action when all advantages were 0 for `no_signal_steps` steps in a row."""
    no_signal_steps: int = Field(default=10, ge=1)
    """Number of such steps; a shorter run is judged by all its steps."""
    keep_last: int = Field(default=2, ge=1)
    """Number of newest complete checkpoints to keep; older ones are removed."""
    checkpoints_in_background: bool = False
    """Write checkpoints while training goes on, which waits for the copy alone, in each worker's
    main memory. A run that ends before a checkpoint is complete continues from the one before."""
    keep_best: int = Field(default=0, ge=0)
    """Number of checkpoints with the highest `best_metric` to keep in addition."""
    best_metric: str = "reward_mean"
    """A metric of the iteration, or a score such as `eval/accuracy` if evaluations follow
    iterations."""


class EvaluationConfig(EvaluationSampling):
    """Evaluation on the held-out rows."""

    eval_every: int = Field(default=0, ge=0)
    """Iterations between evaluations; 0 evaluates only before and after training."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Longest reply in tokens; may exceed the rollout's limit."""
    batch_size: int = Field(default=64, ge=1)
    """Rows that are decoded, or samples that are denoised, in one batch."""
    sets: dict[str, EvaluationSet] = Field(default_factory=dict)
    """Named sets of further held-out rows, `{gsm8k: {data: [...]}, aime24: {data: [...], samples:
    8, temperature: 0.6}}`, in the domains `text` and `vision`."""
    scorers: bool = False
    """Add the recipe's `rewards` to the reward of held-out replies, as in training, and measure
    each scorer. Unset, the environment alone rewards text; drawing domains always do so."""
    pass_mark: float | None = None
    """Reward from which a reply passes; unset takes the `full_reward` of its environment. Where
    that says nothing, rewards that are not all 0 or 1 have no accuracy."""
    max_failed_share: float = Field(default=0.0, ge=0, lt=1)
    """Largest share of held-out replies without a verdict, because their environment or a scorer
    failed: they are counted and left out of every score. Above it the evaluation fails."""

    teacher: bool = False
    """Score the teacher of `distillation` on the held-out rows too, before training; it has to be
    the only one, with a `path`. The table at the end says which share of its gain was reached."""

    @field_validator("sets", mode="after")
    @classmethod
    def _sets_have_names(cls, sets: dict[str, EvaluationSet]) -> dict[str, EvaluationSet]:
        for name in sets:
            check_set_name(name)
        return sets


class ContaminationPolicy(StrEnum):
    """Action on training rows that repeat held-out rows or rows of a benchmark."""

    REPORT = "report"
    """They are reported, and trained on; only a held-out question that is repeated letter by letter
    is refused, as any bad row (`data.on_invalid`)."""
    DROP = "drop"
    """They are left out of training, and counted; held-out rows stay."""
    FAIL = "fail"
    """They end the run before anything is trained."""


class ValidationConfig(Section):
    """Checks of the rows before anything costly starts: trials with their environments, and a
    comparison of what is trained on with what is measured on."""

    oracle_rows: Annotated[int, Field(ge=0)] | Literal["all"] = 100
    """Rows that are played: the row's own answer must earn the full reward, an empty and a wrong
    one must not. Rows that fail it are listed, not refused."""
    build_timeout_s: Seconds = Field(default=60.0, gt=0)
    """Longest time to build the environment of one row in seconds; a row that takes longer is
    refused."""
    contamination: ContaminationPolicy = ContaminationPolicy.REPORT
    """Action on training rows that repeat held-out rows or rows of `benchmarks`: `report`, `drop`
    or `fail`."""
    benchmarks: list[str | dict[str, Any]] = Field(default_factory=list)
    """Rows that the model will be measured on elsewhere, written as in `data.train`; training rows
    are compared with them, and nothing else is done with them."""
