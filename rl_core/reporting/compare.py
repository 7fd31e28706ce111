"""Comparison of several runs: different settings, results, and curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rl_core.evaluation.bootstrap import Change, paired_bootstrap
from rl_core.evaluation.gate import uids
from rl_core.evaluation.row_scores import ACCURACY, deciding_score, paired_scores
from rl_core.reporting.charts import Point, Series, colour_of, line_chart
from rl_core.reporting.curves import (
    further_names,
    held_out_series,
    mean_series,
    metric_series,
    names_shown_first,
)
from rl_core.reporting.pages import render
from rl_core.reporting.run_record import SECONDS, RunRecord
from schemas.receipts import EvalReceipt


@dataclass(frozen=True)
class Compared:
    """One run of a comparison."""

    record: RunRecord
    before: EvalReceipt | None
    after: EvalReceipt | None
    change: Change | None
    """Change of the final accuracy, or of the mean of graded rewards, from the first run's to this
    one's; None if their held-out rows differ."""

    @property
    def seconds(self) -> float:
        return sum(self.record.phase_seconds().values())


def compare_runs(records: Sequence[RunRecord]) -> list[Compared]:
    """Return every run with its change from the first one."""
    compared: list[Compared] = []
    for record in records:
        compared.append(
            Compared(
                record,
                record.evaluation("baseline"),
                record.evaluation("final"),
                _change(records[0], record),
            )
        )
    return compared


def differing_settings(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the dotted keys whose values are not the same in all runs, with the value in each
    run."""
    keys = dict.fromkeys(key for record in records for key in record.settings)
    values = {}
    for key in keys:
        values[key] = [str(record.settings.get(key, "unset")) for record in records]
    return {key: found for key, found in values.items() if len(set(found)) > 1}


def compare_page(records: Sequence[RunRecord]) -> str:
    """Return the comparison as a self-contained page."""
    learned = []
    for record in records:
        learned.append(mean_series(record, record.recipe.domain.traits.curve, record.name))
    held_out = [held_out_series(record, record.name) for record in records]
    first = _names(records, names_shown_first)
    others = [name for name in _names(records, further_names) if name not in first]
    return render(
        "compare.html",
        runs=compare_runs(records),
        settings=differing_settings(records),
        legend=[(record.name, colour_of(index)) for index, record in enumerate(records)],
        charts=[
            line_chart("Learning", learned, legend=False),
            line_chart("Held-out accuracy", held_out, legend=False),
            *(_overlaid(records, name) for name in first),
            line_chart("seconds per step", list(map(_seconds, records)), legend=False),
        ],
        further=[_overlaid(records, name) for name in others],
    )


def _overlaid(records: Sequence[RunRecord], name: str) -> Markup:
    """Draw a metric of all runs; a run without it has no line, and keeps its colour."""
    series = [metric_series(record.steps, name, record.name) for record in records]
    return line_chart(name.replace("_", " "), series, legend=False)


def _seconds(record: RunRecord) -> Series:
    """Return the seconds of each step, all phases together."""
    points = []
    for step in record.steps:
        points.append(
            Point(step["step"], sum(one for key, one in step.items() if key.startswith(SECONDS)))
        )
    return Series(record.name, points)


def _names(
    records: Sequence[RunRecord], of_one: Callable[[RunRecord], list[str]]
) -> dict[str, None]:
    return dict.fromkeys(name for record in records for name in of_one(record))


def _change(first: RunRecord, other: RunRecord) -> Change | None:
    before, after = first.samples("final"), other.samples("final")
    if first is other or not before or uids(before) != uids(after):
        return None
    score = deciding_score([*before, *after], ACCURACY)
    return paired_bootstrap(*paired_scores(before, after, score))
