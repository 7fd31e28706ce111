"""The distance between the engine's and the trainer's log-probabilities of the same tokens, held to
a limit.

With the same weights it is rounding alone. More is a fault: of an engine, of a way of computing, of
a model that is not what it is taken for. The policy that learns is then another one than the one
that sampled, and no other metric shows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rl_core.errors import ModelError
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.recipe import Recipe
from schemas.rollout import EngineKind
from schemas.section import DType

MEAN, MAX = "delta_log_prob_mean", "delta_log_prob_max"
FLOAT32, BFLOAT16, OWN_ENGINE = 0.01, 0.1, 0.2
"""Limits in nats of the mean over a step's tokens: in process by format, and of engines with
kernels of their own."""
WARNED_SHARE = 0.5
"""Of the limit, from which on the log says so."""


def delta_limit(recipe: Recipe) -> float | None:
    """The recipe's limit, or what it means when unset; None where rollouts have older weights than
    the trainer."""
    rollout = recipe.rollout
    if rollout.max_delta_log_prob is not None:
        return rollout.max_delta_log_prob
    samples_average = recipe.ema is not None and recipe.ema.rollout
    if rollout.steps_ahead or samples_average:
        return None
    if rollout.engine is not EngineKind.IN_PROCESS and recipe.fsdp.param_dtype is not DType.FLOAT32:
        return OWN_ENGINE
    if rollout.engine is EngineKind.VLLM:
        return OWN_ENGINE
    return FLOAT32 if recipe.fsdp.param_dtype is DType.FLOAT32 else BFLOAT16


def watch_delta(
    metrics: Mapping[str, float], limit: float | None, step: int, total_steps: int
) -> None:
    """`check_delta`, its warning announced."""
    if warning := check_delta(metrics, limit, step):
        announce(ProgressEvent("note", step, total_steps, text=warning))


def check_delta(metrics: Mapping[str, float], limit: float | None, step: int) -> str | None:
    """A warning where a step came close to the limit. Args: metrics: of one track.

    Raises: ModelError beyond it, or where the distance is no number.
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
    if not delta <= limit:
        raise ModelError(
            f"{said}, where the limit is {limit:g} (rollout.max_delta_log_prob); the policy that "
            "learns is not the one that sampled. Find out which with `rl-train run … "
            "fsdp.param_dtype=float32`; raise the limit only where the distance is known to be "
            "rounding"
        )
    return f"{said}; the limit is {limit:g}" if delta > WARNED_SHARE * limit else None
