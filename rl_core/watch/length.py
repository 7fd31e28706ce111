"""Length run-away: replies get longer, and earn no more for it.

A mean over each reply's own tokens makes long wrong replies cheap, so wrong replies grow (Dr.GRPO,
arXiv 2503.20783); DAPO (arXiv 2503.14476) watches the length for the same reason. Growth that
comes with reward is what reasoning models do, and does not ring. The factor is our choice.
"""

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

WINDOW = 3
LEAST_STEPS = 8
FACTOR = 2.0
"""Growth of the mean length at which it fires."""
GAIN = 0.1
"""Gain of the mean reward, in standard deviations of a step's rewards, that excuses the growth."""


def look(view: View) -> str | None:
    """Return the growth of the mean length if the reward has not grown with it."""
    lengths = view.curve("response_length_mean", LEAST_STEPS)
    rewards, spreads = view.curve("reward_mean", LEAST_STEPS), view.curve("reward_std")
    if lengths is None or rewards is None or spreads is None:
        return None
    before, now = lengths.first(WINDOW), lengths.last(WINDOW)
    gain = rewards.last(WINDOW).mean - rewards.first(WINDOW).mean
    if now.mean < FACTOR * max(before.mean, 1.0) or gain > GAIN * spreads.first(WINDOW).mean:
        return None
    return (
        f"mean length {now.mean:.4g} tokens in {now}, {before.mean:.4g} in {before} (limit "
        f"{FACTOR:g} times), while the mean reward changed by {gain:+.3g}"
    )


WATCHER = Watcher(
    name="length",
    sign="The mean length has doubled, and the reward has not grown (Dr.GRPO, arXiv 2503.20783).",
    cause="the loss favours long wrong replies, or a scorer pays for length",
    advice="a token mean (`algorithm: {name: dr_grpo}` or `loss.aggregation`), "
    "`reward_service.truncated: soft`, `algorithm.overlong`, or another weight of the scorer in "
    "`rewards`",
    look=look,
    rows=Rows.LENGTH,
)
