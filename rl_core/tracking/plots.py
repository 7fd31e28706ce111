"""The plot of a training run: sampled reward (or its substitute) by step, and held-out accuracy."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from schemas.domains import REWARD, Curve
from schemas.receipts import EvalReceipt

REWARD_COLOUR = "#2563eb"
ACCURACY_COLOUR = "#d9480f"
SCORE_COLOURS = (ACCURACY_COLOUR, "#0f766e", "#7c3aed", "#a16207")
TEXT_COLOUR = "#333333"
GRID_COLOUR = "#e3e3e3"


def reward_curve(
    history: Sequence[Mapping[str, float]],
    evaluations: Sequence[EvalReceipt],
    path: Path,
    *,
    curve: Curve = REWARD,
) -> Path:
    """Draw a PNG of 900 x 500 pixels.

    Args: history: one mapping per step with `step` and the metrics of `curve`; points whose mean is
    not finite are gaps. evaluations: in any order. Returns: `path`.
    """
    figure = Figure(figsize=(9, 5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_rewards(axes, sorted(history, key=lambda point: point["step"]), curve)
    graded = curve.scored or any(receipt.graded for receipt in evaluations)
    draw_held_out = _draw_scores if graded else _draw_accuracy
    draw_held_out(axes, sorted(evaluations, key=lambda receipt: receipt.step))
    _dress(axes, curve.title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
    return path


def _draw_rewards(axes: Axes, points: Sequence[Mapping[str, float]], curve: Curve) -> None:
    """Draw the mean line with a band of one standard deviation."""
    if not points:
        return
    steps = [point["step"] for point in points]
    means = [point.get(curve.mean, math.nan) for point in points]
    spreads = [point.get(curve.spread, 0.0) if curve.spread else 0.0 for point in points]
    if any(spreads):
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.fill_between(
            steps,
            low,
            high,
            color=REWARD_COLOUR,
            alpha=0.13,
            linewidth=0,
            label="± 1 std of samples",
        )
    marker = "o" if len(points) < 3 else None
    axes.plot(steps, means, color=REWARD_COLOUR, linewidth=2, marker=marker, label=curve.label)


def _draw_accuracy(axes: Axes, receipts: Sequence[EvalReceipt]) -> None:
    """Draw points with their 95 % interval, the last one labelled with its number, the first as a
    reference line."""
    if not receipts:
        return
    steps = [receipt.step for receipt in receipts]
    values = [receipt.accuracy for receipt in receipts]
    below = [max(0.0, receipt.accuracy - receipt.ci_low) for receipt in receipts]
    above = [max(0.0, receipt.ci_high - receipt.accuracy) for receipt in receipts]
    axes.axhline(values[0], color=ACCURACY_COLOUR, linewidth=1, linestyle=(0, (2, 3)), alpha=0.7)
    axes.errorbar(
        steps,
        values,
        yerr=[below, above],
        color=ACCURACY_COLOUR,
        linewidth=1.4,
        linestyle="--",
        marker="o",
        markersize=7,
        markeredgecolor="white",
        capsize=4,
        zorder=3,
        label=f"held-out accuracy, 95 % interval (n = {receipts[-1].num_rows})",
    )
    for receipt in receipts if len(receipts) == 1 else (receipts[0], receipts[-1]):
        axes.annotate(
            f"{receipt.accuracy:.0%}",
            (receipt.step, receipt.accuracy),
            xytext=(9, 9),
            textcoords="offset points",
            color=ACCURACY_COLOUR,
            fontweight="bold",
        )


def _draw_scores(axes: Axes, receipts: Sequence[EvalReceipt]) -> None:
    """Draw a dashed line per judge, the last point labelled with its number."""
    if not receipts:
        return
    steps = [receipt.step for receipt in receipts]
    for name, colour in zip(receipts[-1].scores, SCORE_COLOURS, strict=False):
        values = [receipt.scores[name] for receipt in receipts]
        axes.plot(
            steps,
            values,
            color=colour,
            linewidth=1.4,
            linestyle="--",
            marker="o",
            label=f"held out: {name}",
        )
        axes.annotate(
            f"{values[-1]:.2f}",
            (steps[-1], values[-1]),
            xytext=(7, 5),
            textcoords="offset points",
            color=colour,
        )


def _dress(axes: Axes, title: str) -> None:
    """Add title, labels, light grid, and the legend below the axes, where it hides no data."""
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", color=TEXT_COLOUR, pad=12)
    axes.set_xlabel("optimiser step", color=TEXT_COLOUR)
    axes.set_ylabel("reward / accuracy", color=TEXT_COLOUR)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.07)
    axes.grid(axis="y", color=GRID_COLOUR, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    axes.tick_params(colors=TEXT_COLOUR)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False)
