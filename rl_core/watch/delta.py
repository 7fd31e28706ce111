"""|Δlogp| rises slowly or at once: the policy that samples is no longer the one that is trained.

Yao et al. (Your Efficient RL Framework Secretly Brings You Off-Policy RL Training, 2025) and Liu et
al. (When Speed Kills Stability, 2025) see this distance grow before a training collapses. Weights
that do not arrive in the engine look the same. Rounding alone stays about where it began; factors
and floor are our choice. `rollout.max_delta_log_prob` ends a run at a fixed limit.
"""

from statistics import median

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

NAME = "delta_log_prob_mean"
WINDOW = 5
RISE = 3.0
"""Multiple of the first steps' mean at which it fires."""
STEP, STEPS_KEPT, MOST_BEFORE = 5.0, 2, 20
"""Multiple of the usual value that a step has to keep for `STEPS_KEPT` steps."""
FLOOR = 0.02
"""Nats per action below which it is rounding."""


def look(view: View) -> str | None:
    """Return the distance of the last steps if it is far above that of earlier ones."""
    curve = view.curve(NAME, WINDOW + STEPS_KEPT)
    if curve is None:
        return None
    first, last = curve.first(WINDOW), curve.last(WINDOW)
    if len(curve) >= 2 * WINDOW and last.mean >= max(RISE * first.mean, FLOOR):
        return (
            f"|Δlogp| {last.mean:.3g} nats per action in {last}, {first.mean:.3g} in {first} "
            f"(limit {RISE:g} times)"
        )
    kept, before = curve.last(STEPS_KEPT), curve.before(MOST_BEFORE, STEPS_KEPT)
    usual = median(before.values)
    if min(kept.values) >= max(STEP * usual, FLOOR):
        return (
            f"|Δlogp| {kept.mean:.3g} nats per action in {kept}, {usual:.3g} in the median of "
            f"{before} (limit {STEP:g} times)"
        )
    return None


WATCHER = Watcher(
    name="delta",
    sign="The mean |Δlogp| of five steps is three times that of the first five, or two steps are "
    "five times the usual one, above 0.02 nats (Yao et al. 2025; Liu et al. 2025).",
    cause="the engine samples with old or differently computed weights, or a policy gone far from "
    "its start makes rounding count",
    advice="`algorithm.correction`, `rollout.steps_ahead: 0`, `fsdp.param_dtype: float32` to "
    "tell rounding from stale weights, `rollout.max_delta_log_prob` as a hard limit",
    look=look,
    rows=Rows.DELTA,
)
