"""Values of a chart under the pointer, without a script: each step has a column of its own, whose
values appear while the pointer, or a finger, is over it.

A long run has more steps than a pointer can tell apart; it gets `MOST_COLUMNS` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

MOST_COLUMNS = 100
LINE_HEIGHT = 14


@dataclass(frozen=True)
class Frame:
    """The plotted part of a chart, in pixels."""

    left: float
    right: float
    top: float
    bottom: float


def columns(
    named: Sequence[tuple[str, dict[float, str]]],
    x_label: str,
    x: Callable[[float], float],
    frame: Frame,
) -> list[str]:
    """Return an SVG group per column.

    Args: named: of each line its label, and what is said of its value, by step. x: converts a step
    to pixels.
    """
    steps = _thinned(sorted({step for _, values in named for step in values}))
    places = [x(step) for step in steps]
    edges = [(one + other) / 2 for one, other in pairwise(places)]
    bounds = zip([frame.left, *edges], [*edges, frame.right], strict=True) if steps else ()
    parts = []
    for step, place, (start, end) in zip(steps, places, bounds, strict=True):
        lines = [f"{x_label} {step:g}"]
        lines += [f"{label}: {values[step]}" for label, values in named if step in values]
        is_left = place < (frame.left + frame.right) / 2
        at, anchor = (place + 6, "start") if is_left else (place - 6, "end")
        parts.append(
            f'<g class="at"><rect x="{start:.1f}" y="{frame.top}" width="{end - start:.1f}" '
            f'height="{frame.bottom - frame.top}"/><line x1="{place:.1f}" x2="{place:.1f}" '
            f'y1="{frame.top}" y2="{frame.bottom}"/>'
        )
        for number, line in enumerate(lines, start=1):
            y = frame.top + number * LINE_HEIGHT
            parts.append(f'<text x="{at:.1f}" y="{y}" text-anchor="{anchor}">{escape(line)}</text>')
        parts.append("</g>")
    return parts


def _thinned(steps: Sequence[float]) -> list[float]:
    if len(steps) <= MOST_COLUMNS:
        return list(steps)
    last = len(steps) - 1
    return [steps[round(number * last / (MOST_COLUMNS - 1))] for number in range(MOST_COLUMNS)]
