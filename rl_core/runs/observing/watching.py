"""The watchers of a run: they check each step, name its rows, and raise alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rl_core.errors import StoppedByWatcher
from rl_core.runs.rollouts.columns import Limit, rows_of
from rl_core.runs.rollouts.reading import Order, Row, first_rows
from rl_core.runs.run_folder import RunFolder
from rl_core.trainers.progress import ProgressEvent, announce
from rl_core.watch.watch import Watch, stopping
from rl_core.watch.watcher import Alarm

if TYPE_CHECKING:
    from rl_core.trainers.step_record import StepRecord
    from schemas.recipe import Recipe

NUM_ROWS = 3


class RunWatch:
    """The watchers of a run, from its steps on disk on."""

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        self._watch = Watch(recipe, folder.history())
        self._recipe, self._folder = recipe, folder

    def observe(self, metrics: Mapping[str, float], record: StepRecord | None) -> list[Alarm]:
        """Look at a step that ended, and announce the alarms that begin with it.

        Args: metrics: of the step, with `step`. record: its rows; None if the trainer keeps none.
        """
        begun = self._watch.observe(metrics)
        if not begun:
            return []
        rows = [] if record is None else _rows_of(record, self._recipe)
        named = [replace(one, sample_ids=sample_ids(one, rows)) for one in begun]
        for alarm in named:
            announce(ProgressEvent("note", alarm.first_step, text=str(alarm), alarm=alarm))
        return named

    def check(self) -> None:
        """Check that no watcher fired that is set to stop the run.

        Raises: StoppedByWatcher saying which, where to go on from, and how.
        """
        if (alarm := stopping(self._watch.alarms)) is not None:
            raise StoppedByWatcher(stop_sentence(alarm, self._folder))


def stop_sentence(alarm: Alarm, folder: RunFolder) -> str:
    """Return why a run was stopped, and how it goes on."""
    return (
        f"{alarm}. The recipe stops here (watch.{alarm.watcher}: stop), with the checkpoint of "
        f"iteration {folder.last_complete()}; the same command with watch.{alarm.watcher}=warn "
        "goes on from there"
    )


def sample_ids(alarm: Alarm, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the ids of the rows that show an alarm best. Args: rows: of one step."""
    own = [row for row in rows if not alarm.track or row["track"] == alarm.track]
    found = first_rows(own, Order(alarm.rows), NUM_ROWS)
    return tuple(row["sample_id"] for row in found if row["sample_id"])


def _rows_of(record: StepRecord, recipe: Recipe) -> list[Row]:
    rows: list[Row] = []
    for track, portions in record.tracks.items():
        for portion in portions:
            if portion.trained:
                for row in rows_of(
                    portion,
                    track,
                    record.step,
                    record.items,
                    Limit(recipe.seed, record.step, track, None),
                )[0]:
                    rows.append(row)
    return rows
