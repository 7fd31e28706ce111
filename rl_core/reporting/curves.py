"""Selection of the metrics that are drawn, and the intervals of their points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from rl_core.evaluation.row_scores import ACCURACY
from rl_core.reporting.charts import Point, Series, line_chart
from rl_core.reporting.run_record import SECONDS, RunRecord
from rl_core.train.stacks.segments import DELTA_AT
from schemas.domains import Curve
from schemas.receipts import EvalReceipt

SHOWN_FIRST = (
    "response_length_mean",
    "truncated_share",
    "entropy",
    "approx_kl",
    "loss",
    "grad_norm",
)
"""Metrics to show first, next to the reward."""
Z_95 = 1.96


def learning_curve(record: RunRecord) -> Markup:
    """Draw the learning curve: the trained metric per step with the interval of its mean, and the
    held-out scores."""
    curve = record.recipe.domain.traits.curve
    label = f"held-out {record.score_name.replace('_', ' ')}"
    series = [mean_series(record, curve, curve.label), held_out_series(record, label)]
    return line_chart(curve.title, series)


def mean_series(record: RunRecord, curve: Curve, label: str) -> Series:
    """Return the mean of each step's rows. Its interval treats the rows of a step as independent
    draws."""
    num_rows = record.recipe.training.prompts_per_step * record.recipe.rows_per_prompt
    points = []
    for step in record.steps:
        mean = step.get(curve.mean, math.nan)
        spread = step.get(curve.spread) if curve.spread else None
        half = None if spread is None else Z_95 * spread / math.sqrt(num_rows)
        points.append(
            Point(
                step["step"], mean, *((None, None) if half is None else (mean - half, mean + half))
            )
        )
    return Series(label, points)


def held_out_series(record: RunRecord, label: str) -> Series:
    """Return the deciding score of every evaluation; an accuracy and a measure of a set have their
    intervals."""
    return Series(label, [_held_out(one, record) for one in record.evaluations], dots=True)


def _held_out(one: EvalReceipt, record: RunRecord) -> Point:
    if record.set is not None:
        found = one.sets.get(record.set)
        measure = None if found is None else found.measures.get(record.score)
        if measure is not None:
            return Point(one.step, measure.value, measure.low, measure.high)
        return Point(one.step, record.value(one))
    low, high = (one.ci_low, one.ci_high) if record.score == ACCURACY else (None, None)
    return Point(one.step, record.value(one), low, high)


def first_curves(record: RunRecord) -> list[Markup]:
    """Draw charts of the most important metrics, as far as the run has them."""
    return [_chart(record.steps, name) for name in _varying(record.steps) if _is_shown_first(name)]


def further_curves(record: RunRecord) -> list[Markup]:
    """Draw charts of every other metric that changed during the run."""
    curve = record.recipe.domain.traits.curve
    left_out = {"step", curve.mean, curve.spread}
    names = [
        name
        for name in _varying(record.steps)
        if name not in left_out and not name.startswith(SECONDS) and DELTA_AT not in name
    ]
    return [_chart(record.steps, name) for name in names if not _is_shown_first(name)]


def delta_by_place(record: RunRecord) -> Markup | None:
    """Draw the difference between trainer and rollout engine along a reply, over the whole run;
    None if the run has no such metrics."""
    found: dict[str, dict[int, list[float]]] = {}
    for step in record.steps:
        for name, value in step.items():
            track, mark, place = name.partition(DELTA_AT)
            if mark and math.isfinite(value):
                found.setdefault(track.rstrip("/"), {}).setdefault(int(place), []).append(value)
    series = [
        Series(
            track or "mean of all steps",
            [Point(place, sum(one) / len(one)) for place, one in sorted(at.items())],
        )
        for track, at in found.items()
    ]
    title = "distance of trainer and rollout, nats per token"
    return line_chart(title, series, x_label="place in the reply") if series else None


def _is_shown_first(name: str) -> bool:
    """Return True for the metrics shown first, of the run or of any of its tracks:
    `text/entropy`."""
    return name.rpartition("/")[2] in SHOWN_FIRST


def _chart(steps: Sequence[Mapping[str, float]], name: str) -> Markup:
    points = [Point(step["step"], step.get(name, math.nan)) for step in steps]
    return line_chart(name.replace("_", " "), [Series(name, points)])


def _varying(steps: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the names of metrics with more than one value, in the order of their first
    appearance."""
    names = dict.fromkeys(name for step in steps for name in step)
    return [name for name in names if len({step[name] for step in steps if name in step}) > 1]
