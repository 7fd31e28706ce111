"""Check of the distance between the engine's and the trainer's log-probabilities of the same
tokens.

With the same weights the distance is only rounding. A larger one is a bug in an engine, in a fast
computation or in the loading of a model: the policy that is trained is then not the policy that
sampled, and no other metric shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rl_core.errors import ModelError
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.recipe import Recipe
from schemas.sections.rollout import EngineKind
from schemas.sections.section import DType

MEAN, SQUARE, MAX = "delta_log_prob_mean", "delta_log_prob_square", "delta_log_prob_max"
FLOAT32, BFLOAT16, OWN_ENGINE = 0.01, 0.1, 0.2
"""Default limits of a step's mean distance, in nats: for the in-process engine by format, and for
engines with their own kernels."""
WARNED_SHARE = 0.5
"""Share of the limit above which a warning is logged."""
CHANCE = 2.0
"""Standard errors by which the mean of a step has to exceed the limit."""


def delta_limit(recipe: Recipe) -> float | None:
    """Return the recipe's limit, or its default; None if rollouts use other weights than the
    trainer's."""
    rollout = recipe.rollout
    if rollout.max_delta_log_prob is not None:
        return rollout.max_delta_log_prob
    samples_average = recipe.ema is not None and recipe.ema.rollout
    if rollout.steps_ahead or rollout.carry_over or samples_average:
        return None
    if rollout.engine is not EngineKind.IN_PROCESS and recipe.fsdp.param_dtype is not DType.FLOAT32:
        return OWN_ENGINE
    if rollout.engine.is_vllm:
        return OWN_ENGINE
    if recipe.fsdp.param_dtype is DType.FLOAT32:
        return FLOAT32
    return BFLOAT16


def watch_delta(
    metrics: Mapping[str, float], limit: float | None, num_rows: int, step: int, total_steps: int
) -> None:
    """Announce the warning of `check_delta`, if there is one."""
    if warning := check_delta(metrics, limit, num_rows, step):
        announce(ProgressEvent("note", step, total_steps, text=warning))


def check_delta(
    metrics: Mapping[str, float], limit: float | None, num_rows: int, step: int
) -> str | None:
    """Return a warning if a step came close to the limit, else None.

    Args: metrics: of one track. num_rows: rows of the step; the distances of a row's tokens are
    related, so it is rows that count as samples of the mean.
    Raises: ModelError when the mean distance exceeds the limit by more than chance explains, or is
    NaN. If mean and maximum are both NaN, nothing was trained and nothing is checked.
    """
    delta, most = metrics.get(MEAN), metrics.get(MAX)
    if limit is None or delta is None or most is None:
        return None
    if math.isnan(delta) and math.isnan(most):
        # Nothing was trained on in this step.
        return None
    said = (
        f"step {step}: log-probabilities of trainer and rollout engine differ by {delta:.3g} in "
        f"the mean, {most:.3g} at most"
    )
    chance = CHANCE * math.sqrt(metrics.get(SQUARE, 0.0) / num_rows)
    if not delta - chance <= limit:
        raise ModelError(
            f"{said}; the limit of the mean is {limit:g} (rollout.max_delta_log_prob); the policy "
            "that learns is not the one that sampled. Find out which with `rl-train run … "
            "fsdp.param_dtype=float32`; raise the limit only where the distance is known to be "
            "rounding"
        )
    if delta > limit:
        return (
            f"{said}; the mean is above its limit of {limit:g} (rollout.max_delta_log_prob) by no "
            f"more than chance explains in {num_rows} rows"
        )
    if delta > WARNED_SHARE * limit:
        return (
            f"{said}; the mean is above {WARNED_SHARE:.0%} of its limit of {limit:g} "
            "(rollout.max_delta_log_prob), at which the run would end"
        )
    return None
