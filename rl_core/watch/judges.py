"""The paying scorers rise, and one that only looks on falls: the policy learns to please its
judge.

Gao et al. (Scaling Laws for Reward Model Overoptimization, arXiv 2210.10760): beyond a point the
reward of a proxy goes on rising while that of an independent judge falls. A scorer of weight 0 is
such a judge. Two thirds of a window are compared; window and confidence are our choice.
"""

import math
from collections.abc import Sequence
from statistics import fmean, variance

from rl_core.watch.view import Curve, View
from rl_core.watch.watcher import Rows, Watcher

LEAST_STEPS, WINDOW = 15, 30
SURE = 3.0
"""Standard errors by which both changes have to differ from 0."""


def look(view: View) -> str | None:
    """Return the changes of the trained reward and of a scorer of weight 0 if they diverge."""
    paid = _paid(view)
    if paid is None:
        return None
    gain, gain_error = _change(paid.values[-WINDOW:])
    for key in view.facts.onlookers:
        curve = view.curve(f"reward/{key}/mean", LEAST_STEPS)
        if curve is None:
            continue
        now = curve.last(WINDOW)
        loss, loss_error = _change(now.values)
        if gain > SURE * gain_error and -loss > SURE * loss_error:
            return f"in {now} the trained reward rose by {gain:.3g}, and {key} fell by {-loss:.3g}"
    return None


def _paid(view: View) -> Curve | None:
    """Return the weighted sum of the scorers that count, and of the environment, by step."""
    sums: dict[int, float] = {}
    for key, weight in view.facts.paying.items():
        curve = view.past(f"reward/{key}/mean")
        for step, value in zip(curve.steps[-WINDOW:], curve.values[-WINDOW:], strict=True):
            sums[step] = sums.get(step, 0.0) + weight * value
    found = Curve(sorted(sums), [sums[step] for step in sorted(sums)])
    if len(found) >= LEAST_STEPS and found.steps[-1] == view.step:
        return found
    return None


def _change(values: Sequence[float]) -> tuple[float, float]:
    """Return the difference of the means of the last and the first third, and its standard
    error."""
    third = len(values) // 3
    first, last = values[:third], values[-third:]
    error = math.sqrt((variance(first) + variance(last)) / third)
    return fmean(last) - fmean(first), error


WATCHER = Watcher(
    name="judges",
    sign="The trained reward has risen and a scorer of weight 0 has fallen, each by three standard "
    "errors, within 30 steps (arXiv 2210.10760).",
    cause="the policy exploits a weakness of the judge that rewards it",
    advice="a larger `algorithm.kl.coef`, another judge or a second one in `rewards`, fewer steps "
    "(`training.num_iterations`), `registration.from: best` with the scorer of "
    "weight 0 as `registration.score`",
    look=look,
    rows=Rows.REWARD,
)
