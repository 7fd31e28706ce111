"""Groups without a signal: all samples of a prompt earn the same, so all advantages are 0.

DAPO (arXiv 2503.14476, section 3.2) shows the share of such groups growing during a training, and
the gradient getting smaller and noisier with it. The window and the limit are our choice.
"""

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

WINDOW = 5
MOST = 0.95
"""Share of groups, or of samples, without a signal at which it fires."""


def look(view: View) -> str | None:
    """Return the share of silent groups over the last steps if there are hardly others."""
    if not view.facts.compares_siblings:
        return _samples(view)
    flat, groups = view.curve("zero_std_groups", WINDOW), view.curve("num_groups", WINDOW)
    if flat is None or groups is None:
        return None
    silent, counted = flat.last(WINDOW), groups.last(WINDOW)
    thrown = _thrown_away(view, counted.steps[0])
    share = (silent.total + thrown) / max(counted.total + thrown, 1.0)
    if share < MOST:
        return None
    return (
        f"{share:.0%} of the groups of {silent} had equal rewards (limit {MOST:.0%}){_reward(view)}"
    )


def _samples(view: View) -> str | None:
    shares = view.curve("zero_advantage_share", WINDOW)
    if shares is None or (found := shares.last(WINDOW)).mean < MOST:
        return None
    return (
        f"{found.mean:.0%} of the samples of {found} had only advantages of 0 (limit {MOST:.0%})"
        f"{_reward(view)}"
    )


def _thrown_away(view: View, first_step: int) -> float:
    """Return the number of silent groups that dynamic sampling has replaced."""
    curve = view.past("dynamic/flat_groups")
    return sum(
        value for step, value in zip(curve.steps, curve.values, strict=True) if step >= first_step
    )


def _reward(view: View) -> str:
    rewards = view.curve("reward_mean")
    if rewards is None:
        return ""
    return f"; their mean reward was {rewards.last(WINDOW).mean:.3g}"


WATCHER = Watcher(
    name="signal",
    sign="At least 95 % of the groups of five steps have equal rewards (DAPO, arXiv 2503.14476).",
    cause="the prompts are too easy or too hard for the policy, or the environment reads nothing "
    "from the replies",
    advice="other prompts (`data.train`, `data.curriculum`), a reward with degrees (`rewards`), "
    "more samples (`rollout.samples_per_prompt`) or `rollout.temperature`; `algorithm: {name: "
    "dapo}` replaces silent groups",
    look=look,
    rows=Rows.STEP,
)
