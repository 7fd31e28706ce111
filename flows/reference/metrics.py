"""The reference page of all metrics: meaning, unit, and where each is logged."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

from flows.reference.markdown import table

TITLE = """# Metrics

All are in the MLflow run, by step; a run's folder has those of training in `steps/` too, its report
draws the chief ones. `rl-train compare` sets runs side by side. A gate takes its scores and guards
from those under *Evaluation*, without `eval/`.

"""


def metrics_page() -> str:
    """Return the page as Markdown."""
    from rl_core.reporting import metric_catalogue

    about = cleandoc(metric_catalogue.__doc__ or "").split("\n\n", 1)[1]
    return "\n".join([TITLE + " ".join(about.split()) + "\n", *_groups()])


def _groups() -> Iterator[str]:
    from rl_core.reporting.metric_catalogue import GROUPS

    for title, notes in GROUPS.items():
        yield f"## {title}\n\n" + table(
            ["metric", "unit", ""], [[f"`{note.name}`", note.unit, note.meaning] for note in notes]
        )
