"""Gradient spikes, and updates that were skipped because their gradient was not finite.

Spikes precede divergence; ZClip (arXiv 2504.02507) finds them as outliers among the last norms.
Norms below `training.max_grad_norm` are not clipped, and do no harm. The factor is our choice.
"""

from statistics import median

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

LEAST_BEFORE, WINDOW = 5, 20
FACTOR = 10.0
"""Multiple of the median of the steps before at which a norm is a spike."""


def look(view: View) -> str | None:
    """Return the skipped updates of this step, or its norm if it is a spike."""
    skipped = view.curve("skipped_steps")
    if skipped is not None and skipped.values[-1] > 0:
        return (
            f"{skipped.values[-1]:g} updates of step {view.step} were skipped: their gradient was "
            "not finite"
        )
    norms = view.curve("grad_norm", LEAST_BEFORE + 1)
    if norms is None:
        return None
    before, now = norms.before(WINDOW), norms.values[-1]
    # A step of silent groups has a norm of 0.
    moved = [value for value in before.values if value > 0]
    if len(moved) < LEAST_BEFORE or now < max(FACTOR * median(moved), view.facts.max_grad_norm):
        return None
    return (
        f"grad_norm {now:.3g} in step {view.step}, {median(moved):.3g} in the median of {before} "
        f"(limit {FACTOR:g} times, from max_grad_norm {view.facts.max_grad_norm:g})"
    )


WATCHER = Watcher(
    name="gradient",
    sign="An update was skipped, or a norm is ten times its usual value and above "
    "`training.max_grad_norm` (after ZClip, arXiv 2504.02507).",
    cause="a few samples with extreme ratios or rewards, a learning rate that is too high, or "
    "overflow in a half format",
    advice="a lower `training.max_grad_norm` or `optimizer.learning_rate`, "
    "`scheduler.warmup_steps`, `fsdp.param_dtype: float32`",
    look=look,
    rows=Rows.ADVANTAGE,
)
