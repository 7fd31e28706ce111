"""Truncation: replies are cut at the limit, so unfinished replies are judged.

DAPO (arXiv 2503.14476, section 3.4) shows that the reward of cut replies is noise that unsettles a
training. Replies of a policy that has yet to learn to end are cut too; there the share falls, and
that does not ring. The limits are our choice.
"""

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

WINDOW = 5
LEVEL = 0.5
"""Share of cut replies in every step of the window at which it fires, unless it falls."""
RISE, RISEN = 0.2, 0.3
"""Rise over the first steps, and the share that has to be reached, at which it fires."""


def look(view: View) -> str | None:
    """Return the share of cut replies if it is high and does not fall, or rises."""
    curve = view.curve("truncated_share", WINDOW)
    if curve is None:
        return None
    before, now = curve.first(WINDOW), curve.last(WINDOW)
    half = len(now.values) // 2
    falls = sum(now.values[-half:]) < sum(now.values[:half])
    stays = view.facts.has_own_end and min(now.values) >= LEVEL and not falls
    rises = now.mean >= RISEN and now.mean - before.mean >= RISE
    if not (stays or rises):
        return None
    return (
        f"{now.mean:.0%} of the replies of {now} were cut, {before.mean:.0%} of those of {before}"
    )


WATCHER = Watcher(
    name="truncation",
    sign="At least half of the replies of five steps are cut, and not fewer at their end; or the "
    "share has risen by 0.2 (DAPO, arXiv 2503.14476).",
    cause="replies are longer than the limit, or the model does not end its turn",
    advice="`rollout.max_new_tokens`, `rollout.stop`, `reward_service.truncated: soft` or "
    "`algorithm.overlong: {filter: true}`",
    look=look,
    rows=Rows.LENGTH,
)
