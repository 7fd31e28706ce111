"""Clip fraction: much of the gradient is thrown away, because the policy moved too far within a
step.

PPO trainings that work clip 0.1 to 0.2 of their actions or fewer (Andrychowicz et al., What Matters
in On-Policy RL, arXiv 2006.05990; TRL's notes on `clip_ratio`). The limit above that is our choice.
"""

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

WINDOW = 3
MOST = 0.3


def look(view: View) -> str | None:
    """Return the share of clipped actions of the last steps if it is high."""
    curve = view.curve("clip_fraction", WINDOW)
    if curve is None or min((now := curve.last(WINDOW)).values) < MOST:
        return None
    return f"{now.mean:.0%} of the actions of {now} were clipped (limit {MOST:.0%})"


WATCHER = Watcher(
    name="clip",
    sign="At least 0.3 of the actions of three steps are clipped (arXiv 2006.05990).",
    cause="the updates of one rollout move the policy too far, or the rollout is too old",
    advice="a lower `optimizer.learning_rate`, fewer `training.num_epochs` or "
    "`training.num_updates_per_batch`, a wider `algorithm.clip_low` and `clip_high`, "
    "`rollout.steps_ahead: 0`",
    look=look,
    rows=Rows.DELTA,
)
