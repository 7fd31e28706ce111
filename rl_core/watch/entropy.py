"""Entropy collapse: the policy becomes certain, and stops exploring.

Cui et al. (The Entropy Mechanism of RL for Reasoning Language Models, arXiv 2505.22617) find that
reward is bought with entropy, and that nearly all gains are made when 94 % of it is used up: what
comes after teaches little. The limit is that 6 %; the windows are our choice.
"""

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

WINDOW = 3
LEAST_STEPS = 8
LEFT = 0.06
"""Share of the first steps' entropy under which it fires."""


def look(view: View) -> str | None:
    """Return how much entropy is left if it is nearly used up."""
    curve = view.curve("entropy", LEAST_STEPS)
    if curve is None:
        return None
    before, now = curve.first(WINDOW), curve.last(WINDOW)
    if before.mean <= 0 or now.mean >= LEFT * before.mean:
        return None
    return (
        f"entropy {now.mean:.3g} nats in {now}, {before.mean:.3g} in {before}: "
        f"{now.mean / before.mean:.1%} is left (limit {LEFT:.0%})"
    )


WATCHER = Watcher(
    name="entropy",
    sign="Less than 6 % of the first steps' entropy is left (arXiv 2505.22617).",
    cause="the policy is certain of its replies and explores no more; what it cannot do yet, it "
    "will hardly learn",
    advice="clip higher (`algorithm.clip_high`), `algorithm.entropy_coef`, a covariance loss "
    "(`algorithm.loss: {name: clip_cov}`), a lower `optimizer.learning_rate`, or stop here",
    look=look,
    rows=Rows.STEP,
)
