"""Comparison of several runs: different settings, results, and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_core.evaluation.bootstrap import Change, paired_bootstrap
from rl_core.evaluation.gate import uids
from rl_core.evaluation.row_scores import ACCURACY, deciding_score, paired_scores
from rl_core.reporting.charts import line_chart
from rl_core.reporting.curves import held_out_series, mean_series
from rl_core.reporting.pages import render
from rl_core.reporting.run_record import RunRecord
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
    return [
        Compared(
            record,
            record.evaluation("baseline"),
            record.evaluation("final"),
            _change(records[0], record),
        )
        for record in records
    ]


def differing_settings(records: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Return the dotted keys whose values are not the same in all runs, with the value in each
    run."""
    keys = dict.fromkeys(key for record in records for key in record.settings)
    values = {key: [str(record.settings.get(key, "unset")) for record in records] for key in keys}
    return {key: found for key, found in values.items() if len(set(found)) > 1}


def compare_page(records: Sequence[RunRecord]) -> str:
    """Return the comparison as a self-contained page."""
    learned = [
        mean_series(record, record.recipe.domain.traits.curve, record.name) for record in records
    ]
    held_out = [held_out_series(record, record.name) for record in records]
    return render(
        "compare.html",
        runs=compare_runs(records),
        settings=differing_settings(records),
        charts=[line_chart("Learning", learned), line_chart("Held-out accuracy", held_out)],
    )


def _change(first: RunRecord, other: RunRecord) -> Change | None:
    before, after = first.samples("final"), other.samples("final")
    if first is other or not before or uids(before) != uids(after):
        return None
    score = deciding_score([*before, *after], ACCURACY)
    return paired_bootstrap(*paired_scores(before, after, score))
