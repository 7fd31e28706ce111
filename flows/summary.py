"""The table at the end of a run: held-out rows before and after, and the change with its
interval."""

from __future__ import annotations

from collections.abc import Sequence

from flows.console import Table
from rl_core.evaluation.intervals import paired_change
from rl_core.evaluation.row_scores import ACCURACY, MEAN_REWARD, paired_scores
from rl_core.evaluation.runner import read_samples
from schemas.receipts import EvalReceipt

REWARD = "reward"
"""Name of the full reward in samples."""


def accuracy_table(title: str, before: EvalReceipt, after: EvalReceipt) -> Table:
    """Return the table for rows that are right or wrong: the share with full reward, and the
    domain's further metrics."""
    table = _table(title, ("accuracy", "95 % interval", "mean length", "truncated", *after.scores))
    for one in (before, after):
        interval = f"{one.ci_low:.3f} to {one.ci_high:.3f}"
        length = f"{one.mean_length:.1f}", f"{one.truncated_share:.1%}"
        table.row(one.label, f"{one.accuracy:.3f}", interval, *length, *_values(one.scores))
    old, new = (read_samples(one.samples_path) for one in (before, after))
    change, low, high = paired_change(*paired_scores(old, new, ACCURACY))
    gains = []
    for name, value in before.scores.items():
        gains.append(f"{after.scores[name] - value:+.3f}")
    table.row(
        "change", f"{change:+.3f}", f"{low:+.3f} to {high:+.3f}", "", "", *gains, end_section=True
    )
    return table


def score_table(title: str, before: EvalReceipt, after: EvalReceipt) -> Table:
    """Return the table for rows with graded scores: means of the reward and of every score, each
    change with its interval."""
    old, new = (read_samples(one.samples_path) for one in (before, after))
    names = REWARD, *after.scores
    table = _table(title, names)
    for one in (before, after):
        table.row(one.label, f"{one.mean_reward:.3f}", *_values(one.scores))
    changes = []
    for name in names:
        changes.append(
            paired_change(*paired_scores(old, new, MEAN_REWARD if name == REWARD else name))
        )
    table.row("change", *(f"{change:+.3f}" for change, _, _ in changes))
    table.row(
        "95 % interval",
        *(f"{low:+.3f} to {high:+.3f}" for _, low, high in changes),
        end_section=True,
    )
    return table


def sets_table(title: str, receipts: Sequence[EvalReceipt]) -> Table:
    """Return the table of the named sets: each measure with its interval, in the order of the
    evaluations."""
    table = _table(title, ("measure", *(one.label for one in receipts)))
    for name, last in receipts[-1].sets.items():
        for measure in last.measures:
            found = [one.sets[name].measures.get(measure) for one in receipts if name in one.sets]
            shown = []
            for one in found:
                if one is None:
                    shown.append("")
                else:
                    shown.append(f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})")
            table.row(name, measure, *[""] * (len(receipts) - len(shown)), *shown)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title)
    for column in ("", *columns):
        table.column(column.replace("_", " "), overflow="ellipsis")
    return table


def _values(scores: dict[str, float]) -> list[str]:
    return [f"{value:.3f}" for value in scores.values()]
