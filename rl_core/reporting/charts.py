"""Line charts as inline SVG, which need no script, print sharply, take their colours from the
page's style, and show the values under the pointer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from rl_core.reporting.hover import Frame, columns

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 30, 44
NUM_TICKS = 5
NUM_COLOURS = 6


@dataclass(frozen=True)
class Point:
    """A value at a step, optionally with an interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """A named line. A step whose value is not finite is a gap."""

    label: str
    points: Sequence[Point]
    dots: bool = False
    """Draw dots with error bars instead of a band, for few, separate measurements."""


@dataclass(frozen=True)
class _Axes:
    """Conversion of values to pixels."""

    x_min: float
    x_max: float
    y_min: float
    y_max: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_min) / (self.x_max - self.x_min) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return (
            HEIGHT
            - BOTTOM
            - (value - self.y_min) / (self.y_max - self.y_min) * (HEIGHT - TOP - BOTTOM)
        )


def line_chart(
    title: str, series: Sequence[Series], x_label: str = "step", *, legend: bool = True
) -> Markup:
    """Return an `<svg>` of `series` on one pair of axes, or a note if there is nothing to draw.

    Args: legend: name the lines below the chart; else the page does.
    """
    drawn = [Series(one.label, _finite(one.points), one.dots) for one in series]
    parts = [f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>']
    if not any(one.points for one in drawn):
        parts.append(f'<text x="{LEFT}" y="{HEIGHT / 2}">nothing was measured</text>')
    else:
        axes = _axes([point for one in drawn for point in one.points])
        parts += _grid(axes)
        for index, one in enumerate(drawn):
            colour = colour_of(index)
            parts += _dots(one, axes, colour) if one.dots else _line(one, axes, colour, index)
        parts += _legend(drawn) if legend else []
        # In the margin, where no number of the axis stands.
        parts.append(
            f'<text x="{LEFT - 12}" y="{HEIGHT - 28}" text-anchor="end">{escape(x_label)}</text>'
        )
        named = []
        for one in drawn:
            named.append((one.label, {point.x: _said(point) for point in one.points}))
        parts += columns(named, x_label, axes.x, Frame(LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM))
    label = escape(f"{title}: {', '.join(one.label for one in drawn)}", quote=True)
    body = "\n".join(parts)
    return Markup(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">\n{body}\n</svg>'
    )


def colour_of(index: int) -> str:
    """Return the colour of a line by its number, as CSS."""
    return f"var(--c{index % NUM_COLOURS})"


def _said(point: Point) -> str:
    if point.low is None or point.high is None:
        return f"{point.y:.4g}"
    return f"{point.y:.4g} ({point.low:.4g} to {point.high:.4g})"


def _finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point.y)]


def _axes(points: Sequence[Point]) -> _Axes:
    xs = [point.x for point in points]
    ys = []
    for point in points:
        for value in (point.y, point.low, point.high):
            if value is not None:
                ys.append(value)
    x_min, x_max, y_min, y_max = min(xs), max(xs), min(ys), max(ys)
    if x_min == x_max:
        x_min, x_max = x_min - 1, x_max + 1
    pad = 0.06 * (y_max - y_min) or 0.1 * abs(y_max) or 0.1
    return _Axes(x_min, x_max, y_min - pad, y_max + pad)


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers inside an interval, about `NUM_TICKS` of them (1, 2 or 5 times a power
    of ten apart)."""
    rough = (high - low) / NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [number * step for number in range(first, last + 1)]


def _grid(axes: _Axes) -> list[str]:
    parts = []
    for value in ticks(axes.y_min, axes.y_max):
        y = axes.y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in (tick for tick in ticks(axes.x_min, axes.x_max) if tick == int(tick)):
        parts.append(
            f'<text x="{axes.x(value):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{value:g}</text>'
        )
    return parts


def _line(one: Series, axes: _Axes, colour: str, index: int) -> list[str]:
    banded = []
    for p in one.points:
        if p.low is not None and p.high is not None:
            banded.append((p.x, p.low, p.high))
    parts = []
    if banded:
        upper = [(x, high) for x, _, high in banded]
        lower = [(x, low) for x, low, _ in reversed(banded)]
        parts.append(
            f'<polygon class="band" fill="{colour}" points="{_path([*upper, *lower], axes)}"/>'
        )
    corners = _path([(point.x, point.y) for point in one.points], axes)
    # Colours that come a second time are told apart by their dashes.
    again = index // NUM_COLOURS
    dashes = f' stroke-dasharray="{2 * again + 2} 3"' if again else ""
    line = f'<polyline class="curve" stroke="{colour}"{dashes} points="{corners}"/>'
    return [*parts, line]


def _path(corners: Sequence[tuple[float, float]], axes: _Axes) -> str:
    return " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in corners)


def _dots(one: Series, axes: _Axes, colour: str) -> list[str]:
    parts = []
    for point in one.points:
        x, y = axes.x(point.x), axes.y(point.y)
        if point.low is not None and point.high is not None:
            ends = f'y1="{axes.y(point.low):.1f}" y2="{axes.y(point.high):.1f}"'
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{colour}" stroke-width="1.5"/>'
            )
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
    return parts


def _legend(series: Sequence[Series]) -> list[str]:
    parts, x = [], float(LEFT)
    for index, one in enumerate(series):
        parts.append(
            f'<rect x="{x:.0f}" y="{HEIGHT - 15}" width="10" height="10" rx="2" '
            f'fill="{colour_of(index)}"/>'
        )
        parts.append(f'<text x="{x + 14:.0f}" y="{HEIGHT - 6}">{escape(one.label)}</text>')
        x += 26 + 7.0 * len(one.label)
    return parts
