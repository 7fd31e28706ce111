"""Memory growth: the peak of a worker grows from iteration to iteration, until it is killed.

A peak that is set once and stays is ordinary. One that grows each time is a leak, or replies that
get longer. The limits are our choice.
"""

from rl_core.watch.view import View
from rl_core.watch.watcher import Rows, Watcher

NAME = "peak_memory_gb"
WARM_UP, GROWTHS = 2, 4
"""Iterations that are ignored, and growths in a row at which it fires."""
EACH, ALL = 0.01, 0.10
"""Share by which each of them, and all of them together, have to exceed the one before."""


def look(view: View) -> str | None:
    """Return the growth of the peak if it did not pause."""
    curve = view.curve(NAME, WARM_UP + GROWTHS + 1)
    if curve is None:
        return None
    now = curve.last(GROWTHS + 1)
    grew = all(
        after > (1 + EACH) * before
        for before, after in zip(now.values[:-1], now.values[1:], strict=True)
    )
    if not grew or now.values[-1] < (1 + ALL) * now.values[0]:
        return None
    return (
        f"peak memory of a worker {now.values[-1]:.3g} GB in step {now.steps[-1]}, "
        f"{now.values[0]:.3g} GB in step {now.steps[0]}, more after each iteration"
    )


WATCHER = Watcher(
    name="memory",
    sign="The peak memory grew in each of the last four iterations, by 10 % in all (our choice).",
    cause="replies get longer, or a worker, an environment or a scorer keeps what it should "
    "release",
    advice="`rollout.max_batch_size`, `rollout.max_new_tokens`, `placement.micro_batch_size`; a "
    "resumed run starts new workers",
    look=look,
    rows=Rows.LENGTH,
    of_run=True,
)
