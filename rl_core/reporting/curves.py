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
    *("response_length_mean", "truncated_share", "entropy", "approx_kl", "kl_ref"),
    *("clip_fraction", "delta_log_prob_mean", "loss", "grad_norm", "lr", "peak_memory_gb"),
)
"""Metrics to show first, next to the reward, in this order."""
SHOWN_EVEN = ("clip_fraction", "delta_log_prob_mean", "lr", "peak_memory_gb")
"""Metrics of `SHOWN_FIRST` that are shown even if they never changed."""
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
    """Draw charts of the most important metrics, as far as the run has them, and of the time per
    phase."""
    charts = [_chart(record.steps, name) for name in names_shown_first(record)]
    phases = phase_series(record)
    if phases:
        return [*charts, line_chart("seconds per phase", phases)]
    return charts


def names_shown_first(record: RunRecord) -> list[str]:
    """Return the metrics of `SHOWN_FIRST` that a run has, of every track, in that order."""
    varying = set(_varying(record.steps))
    names = []
    for name in dict.fromkeys(name for step in record.steps for name in step):
        if _is_shown_first(name) and (name in varying or _last_part(name) in SHOWN_EVEN):
            names.append(name)
    return sorted(names, key=lambda name: SHOWN_FIRST.index(_last_part(name)))


def phase_series(record: RunRecord) -> list[Series]:
    """Return the seconds of each phase by step, the longest phase first."""
    return [metric_series(record.steps, SECONDS + phase, phase) for phase in record.phase_seconds()]


def metric_series(steps: Sequence[Mapping[str, float]], name: str, label: str) -> Series:
    """Return a metric by step. A step without it is a gap."""
    return Series(label, [Point(step["step"], step.get(name, math.nan)) for step in steps])


def further_curves(record: RunRecord) -> list[Markup]:
    """Draw charts of every other metric that changed during the run."""
    return [_chart(record.steps, name) for name in further_names(record)]


def further_names(record: RunRecord) -> list[str]:
    """Return the metrics that changed, and are not among those shown first."""
    curve = record.recipe.domain.traits.curve
    left_out = {"step", curve.mean, curve.spread}
    names = []
    for name in _varying(record.steps):
        if name not in left_out and not name.startswith(SECONDS) and DELTA_AT not in name:
            names.append(name)
    shown = set(names_shown_first(record))
    return [name for name in names if name not in shown]


def delta_by_place(record: RunRecord) -> Markup | None:
    """Draw the difference between trainer and rollout engine along a reply, over the whole run;
    None if the run has no such metrics."""
    found: dict[str, dict[int, list[float]]] = {}
    for step in record.steps:
        for name, value in step.items():
            track, mark, place = name.partition(DELTA_AT)
            if mark and math.isfinite(value):
                found.setdefault(track.rstrip("/"), {}).setdefault(int(place), []).append(value)
    series = []
    for label, at in found.items():
        means = [Point(place, sum(one) / len(one)) for place, one in sorted(at.items())]
        series.append(Series(label or "mean of all steps", means))
    title = "distance of trainer and rollout, nats per token"
    if series:
        return line_chart(title, series, x_label="place in the reply")
    return None


def _is_shown_first(name: str) -> bool:
    """Return True for the metrics shown first, of the run or of any of its tracks:
    `text/entropy`."""
    return _last_part(name) in SHOWN_FIRST


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _chart(steps: Sequence[Mapping[str, float]], name: str) -> Markup:
    return line_chart(name.replace("_", " "), [metric_series(steps, name, name)])


def _varying(steps: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the names of metrics with more than one value, in the order of their first
    appearance."""
    names = dict.fromkeys(name for step in steps for name in step)
    varying: list[str] = []
    for name in names:
        if len({step[name] for step in steps if name in step}) > 1:
            varying.append(name)
    return varying
