"""One `data_source` starves: its rows teach nothing while others do, or they are not sampled any
more.

Multi-source trainings lose the hard or the solved source first, where groups without a signal are
left out or replaced (DAPO, arXiv 2503.14476, section 3.2) and where a curriculum follows the pass
rate. Windows and limits are our choice.
"""

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

WINDOW = 10
OTHERS = 0.1
"""Share of the other sources' rows that have to teach something."""
EXPECTED = 10.0
"""Prompts of a source that its earlier share promised for the window."""


def look(view: View) -> str | None:
    """Return the source that teaches nothing, or is gone."""
    learning = dict(view.named("source/", "/learning_share"))
    if len(learning) < 2:
        return None
    for name, curve in learning.items():
        if (now := view.curve(f"source/{name}/learning_share", WINDOW)) is not None:
            own = now.last(WINDOW)
            others = []
            for other in learning:
                if other != name and (
                    found := view.curve(f"source/{other}/learning_share", WINDOW)
                ):
                    others.append(found.last(WINDOW).mean)
            if own.total == 0 and others and max(others) >= OTHERS:
                return (
                    f"no row of {name} had an advantage in {own}, while {max(others):.0%} of the "
                    "rows of another source had"
                )
        if (gone := view.step - curve.steps[-1]) >= WINDOW:
            share = view.past(f"source/{name}/sampled_share").first(WINDOW).mean
            if share * gone * view.facts.prompts_per_step >= EXPECTED:
                return (
                    f"no row of {name} was sampled since step {curve.steps[-1]}; it had "
                    f"{share:.0%} of the rows before"
                )
    return None


WATCHER = Watcher(
    name="sources",
    sign="No row of a source had an advantage in ten steps in which others had, or none was "
    "sampled (after DAPO, arXiv 2503.14476).",
    cause="the source is solved or far too hard, its environment reads nothing, or the order of "
    "prompts leaves it out",
    advice="`data.blend`, `data.curriculum`, other rows of the source in `data.train`, or its "
    "environment's options in `environments`",
    look=look,
    rows=Rows.STEP,
)
