"""The report of one run: a single HTML file to read, print, mail or keep."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_core.evaluation.bootstrap import Change, paired_bootstrap
from rl_core.evaluation.row_scores import row_scores
from rl_core.home import Home
from rl_core.reporting.curves import first_curves, further_curves, learning_curve
from rl_core.reporting.pages import render
from rl_core.reporting.run_record import RunRecord, embedded_pictures
from rl_core.tracking.lineage import RunLineage, trace, trace_run, validation_of

NUM_SAMPLES = 16


def write_report(record: RunRecord, home: Home, path: Path | None = None) -> Path:
    """Write the report of a run as far as it has come. Returns: its path; unset is `report.html` in the folder."""
    target = path or record.folder.root / "report.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report_page(record, home), encoding="utf-8")
    return target


def report_page(record: RunRecord, home: Home) -> str:
    """The page itself. Raises: StorageError when MLflow does not know the run."""
    lineage = _lineage(record, home)
    phases = record.phase_seconds()
    return render(
        "report.html",
        record=record,
        model=record.model,
        change=accuracy_change(record),
        learning=learning_curve(record),
        curves=first_curves(record),
        further=further_curves(record),
        phases=phases,
        longest=max(phases.values(), default=0.0),
        samples=_samples(record),
        pictures=[(path.stem.replace("-", " "), _data_uri(path)) for path in embedded_pictures(record)],
        validation=validation_of(home.mlflow_uri, lineage.run_id),
        lineage=lineage,
    )


def accuracy_change(record: RunRecord) -> Change | None:
    """From the baseline to the final evaluation, on the same rows; None before both are made."""
    before, after = record.samples("baseline"), record.samples("final")
    if not (before and after):
        return None
    return paired_bootstrap(row_scores(before, "accuracy"), row_scores(after, "accuracy"))


def _lineage(record: RunRecord, home: Home) -> RunLineage:
    if record.model is None:
        return trace_run(home.mlflow_uri, record.mlflow_run_id, ui=home.mlflow_ui)
    return trace(home.mlflow_uri, record.model.name, record.model.version, ui=home.mlflow_ui)


def _samples(record: RunRecord) -> list[dict[str, Any]]:
    """The first held-out rows with both answers; those that changed most come first."""
    before, after = record.samples("baseline"), record.samples("final")
    if not (before and after):
        return []
    pairs = sorted(zip(before, after, strict=True), key=lambda pair: -abs(pair[1]["reward"] - pair[0]["reward"]))
    return [
        {
            "prompt": _prompt_text(one),
            "truth": one["ground_truth"],
            "before": one["response"],
            "reward_before": one["reward"],
            "after": two["response"],
            "reward_after": two["reward"],
        }
        for one, two in pairs[:NUM_SAMPLES]
    ]


def _prompt_text(row: Mapping[str, Any]) -> str:
    prompt = row["prompt"]
    return str(prompt[-1]["content"]) if isinstance(prompt, list) and prompt else str(prompt)


def _data_uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
