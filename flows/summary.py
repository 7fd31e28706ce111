"""The table at the end of a run: held-out rows before and after, and the change with its interval.

Scores are its lines and not its columns: their number and names are the environments', and a
terminal has 80 characters."""

from __future__ import annotations

from collections.abc import Sequence

from flows.console import Table
from rl_core.evaluation.intervals import paired_change
from rl_core.evaluation.row_scores import ACCURACY, MEAN_REWARD, paired_scores
from rl_core.evaluation.runner import read_samples
from schemas.receipts import ChainReceipt, EvalReceipt, ModelReceipt

REWARD = "reward"
"""Name of the full reward in samples."""
CHANGE, INTERVAL = "change", "95 % interval"


def result_lines(receipt: ModelReceipt | ChainReceipt) -> list[str]:
    """Return two lines for each registered version: its name with the verdict on it, and the folder
    of its weights."""
    models = [receipt] if isinstance(receipt, ModelReceipt) else list(receipt.stages.values())
    lines: list[str] = []
    for model in models:
        lines.append(f"model    {model.name} v{model.version}, {model.reason}")
        lines.append(f"weights  {model.model_path}")
    return lines


def accuracy_table(
    title: str, before: EvalReceipt, after: EvalReceipt, teacher: EvalReceipt | None = None
) -> Table:
    """Return the table for rows that are right or wrong: the share with full reward, and the
    domain's further metrics, a line each. Args: teacher: its evaluation, for a last column."""
    table = _table(title, (before.label, after.label, CHANGE, *_labels(teacher)))
    old, new = (read_samples(one.samples_path) for one in (before, after))
    change, low, high = paired_change(*paired_scores(old, new, ACCURACY), within=(0.0, 1.0))
    measured = [before, after, *([] if teacher is None else [teacher])]
    changes = {"accuracy": f"{change:+.3f}", INTERVAL: _interval(low, high, sign="+")}
    lines = {
        "accuracy": [f"{one.accuracy:.3f}" for one in measured],
        INTERVAL: [_interval(one.ci_low, one.ci_high) for one in measured],
        "mean length": [f"{one.mean_length:.1f}" for one in measured],
        "truncated": [f"{one.truncated_share:.1%}" for one in measured],
    }
    for name in _scores(before, after):
        was, value = (one.scores.get(name) for one in (before, after))
        lines[_words(name)] = [_number(one.scores.get(name)) for one in measured]
        if was is not None and value is not None:
            changes[_words(name)] = f"{value - was:+.3f}"
    for name, (old_value, new_value, *taught) in lines.items():
        table.row(name, old_value, new_value, changes.get(name, ""), *taught)
    return table


def score_table(
    title: str, before: EvalReceipt, after: EvalReceipt, teacher: EvalReceipt | None = None
) -> Table:
    """Return the table for rows with graded scores: means of the reward and of every score, a line
    each, and each change with its interval. Args: teacher: its evaluation, for a last column."""
    table = _table(title, (before.label, after.label, CHANGE, INTERVAL, *_labels(teacher)))
    old, new = (read_samples(one.samples_path) for one in (before, after))
    change, low, high = paired_change(*paired_scores(old, new, MEAN_REWARD))
    rewards = [_number(one.mean_reward) for one in (before, after)]
    taught = [] if teacher is None else [_number(teacher.mean_reward)]
    table.row(REWARD, *rewards, f"{change:+.3f}", _interval(low, high, sign="+"), *taught)
    for name in _scores(before, after):
        values = [_number(one.scores.get(name)) for one in (before, after)]
        changed = "", ""
        if all(values):
            change, low, high = paired_change(*paired_scores(old, new, name))
            changed = f"{change:+.3f}", _interval(low, high, sign="+")
        taught = [] if teacher is None else [_number(teacher.scores.get(name))]
        table.row(_words(name), *values, *changed, *taught)
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


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title)
    for column in ("", *columns):
        table.column(_words(column))
    return table


def _labels(teacher: EvalReceipt | None) -> list[str]:
    return [] if teacher is None else [teacher.label]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _scores(before: EvalReceipt, after: EvalReceipt) -> list[str]:
    """Names of the scores of either, in their order; an environment may have said one only once."""
    return list(dict.fromkeys([*after.scores, *before.scores]))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _interval(low: float, high: float, sign: str = "") -> str:
    return f"{low:{sign}.3f} to {high:{sign}.3f}"
