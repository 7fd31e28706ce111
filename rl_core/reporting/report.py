"""The report of one run: a single HTML file to read, print, mail or keep."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rl_core.data.read.row_images import open_image
from rl_core.data.store.atomic import atomic_write_text
from rl_core.errors import DataError
from rl_core.evaluation.bootstrap import Change, paired_bootstrap
from rl_core.evaluation.row_scores import (
    ACCURACY,
    deciding_score,
    paired_scores,
    row_scores,
)
from rl_core.reporting.champion_recipe import difference_to_champion
from rl_core.reporting.curves import delta_by_place, first_curves, further_curves, learning_curve
from rl_core.reporting.pages import render
from rl_core.reporting.rollouts_page import write_rollouts_page
from rl_core.reporting.run_record import RunRecord, embedded_pictures
from rl_core.runs.observing.learning import what_taught_nothing
from rl_core.runs.observing.no_signal import read_silence
from rl_core.runs.observing.watching import NUM_ROWS, sample_ids
from rl_core.runs.rollouts.reading import Order, Wanted, files_of, select
from rl_core.runtime.home import Home
from rl_core.tracking.lineage import RunLineage, trace, trace_run, validation_of
from rl_core.watch.watcher import Alarm

NUM_SAMPLES = 16
PICTURE_SIDE = 512


def write_report(record: RunRecord, home: Home, path: Path | None = None) -> Path:
    """Write the report of a run, finished or not, and beside it the page of its rollouts, if it
    stored any.

    Returns: its path; by default `report.html` in the run's folder. Raises: StorageError when it
    cannot be written.
    """
    target = path or record.folder.root / "report.html"
    rollouts = write_rollouts_page(record, home, target)
    page = report_page(record, home, rollouts=None if rollouts is None else rollouts.name)
    atomic_write_text(target, page)
    return target


def report_page(record: RunRecord, home: Home, rollouts: str | None = None) -> str:
    """Return the page.

    Args: rollouts: name of the page of rollouts beside it. Raises: StorageError when MLflow does
    not know the run.
    """
    lineage = _lineage(record, home)
    phases = record.phase_seconds()
    return render(
        "report.html",
        record=record,
        model=record.model,
        change=score_change(record),
        warnings=what_taught_nothing(record.recipe, record.steps),
        silence=read_silence(record.folder),
        alarms=[_with_rows(alarm, record) for alarm in record.alarms],
        stopped_by=record.stopped_by,
        against_champion=difference_to_champion(record, home),
        learning=learning_curve(record),
        curves=[*first_curves(record), *filter(None, [delta_by_place(record)])],
        further=further_curves(record),
        phases=phases,
        longest=max(phases.values(), default=0.0),
        samples=_samples(record),
        pictures=[
            (path.stem.replace("-", " "), _data_uri(path.read_bytes()))
            for path in embedded_pictures(record)
        ],
        validation=validation_of(home.mlflow_uri, lineage.run_id),
        lineage=lineage,
        rollouts=rollouts,
    )


def _with_rows(alarm: Alarm, record: RunRecord) -> Alarm:
    """Return an alarm with the rows of its last step that show it, if that step is stored."""
    if alarm.last_step not in files_of(record.folder.rollouts):
        return alarm
    wanted = Wanted(step=alarm.last_step, track=alarm.track or None)
    rows = select(record.folder.rollouts, wanted, Order(alarm.rows), NUM_ROWS)
    return replace(alarm, sample_ids=sample_ids(alarm, rows))


def score_change(record: RunRecord) -> Change | None:
    """Return the change of the deciding score from the baseline to the final evaluation on the same
    rows; None before both exist."""
    before, after = record.compared("baseline"), record.compared("final")
    if not (before and after):
        return None
    return paired_bootstrap(*paired_scores(before, after, record.score))


def _lineage(record: RunRecord, home: Home) -> RunLineage:
    if record.model is None:
        return trace_run(home.mlflow_uri, record.mlflow_run_id, ui=home.mlflow_ui)
    return trace(home.mlflow_uri, record.model.name, record.model.version, ui=home.mlflow_ui)


def _samples(record: RunRecord) -> list[dict[str, object]]:
    """Return held-out rows with both answers; those whose deciding score changed most come
    first."""
    before, after = record.samples("baseline"), record.samples("final")
    if not (before and after):
        return []
    # The samples are of the held-out rows, which may not have the score of a set.
    score = record.score if record.set is None else deciding_score(after, ACCURACY)
    scores = [row_scores(rows, score) for rows in (before, after)]
    changes = [abs(two - one) for one, two in zip(*scores, strict=True)]
    shown = sorted(range(len(before)), key=lambda row: (math.isnan(changes[row]), -changes[row]))[
        :NUM_SAMPLES
    ]
    samples: list[dict[str, object]] = []
    for row in shown:
        samples.append(
            {
                "prompt": _prompt_text(before[row]),
                "asked_about": [_picture(path) for path in before[row].get("images", [])],
                "truth": before[row]["ground_truth"],
                "answers": [
                    {
                        "text": one[row]["response"],
                        "made": _picture(one[row].get("made")),
                        "score": values[row],
                    }
                    for one, values in zip((before, after), scores, strict=True)
                ],
            }
        )
    return samples


def _prompt_text(row: Mapping[str, object]) -> str:
    prompt = row["prompt"]
    if isinstance(prompt, list) and prompt:
        return str(prompt[-1]["content"])
    return str(prompt)


def _picture(found: str | None) -> str | None:
    """Return a picture as a `data:` URL, at most `PICTURE_SIDE` pixels; None if there is none to
    show."""
    if found is None:
        return None
    try:
        picture = open_image(found)
    except DataError:
        return None  # a video, or a file that has been removed since
    picture.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return _data_uri(buffer.getvalue())


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
