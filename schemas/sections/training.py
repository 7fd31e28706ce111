"""Length of a training, sizes of its steps, its evaluations, and the checks of its rows."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from schemas.sections.numbers import Seconds
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
    keep_best: int = Field(default=0, ge=0)
    """Number of checkpoints with the highest `best_metric` to keep in addition."""
    best_metric: str = "reward_mean"
    """A metric of the iteration, or a score such as `eval/accuracy` if evaluations follow
    iterations."""


class EvaluationConfig(Section):
    """Evaluation on the held-out rows."""

    eval_every: int = Field(default=0, ge=0)
    """Iterations between evaluations; 0 evaluates only before and after training."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Longest reply in tokens; may exceed the rollout's limit."""
    batch_size: int = Field(default=64, ge=1)
    """Rows that are decoded, or samples that are denoised, in one batch."""


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
