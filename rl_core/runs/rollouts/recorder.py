"""Writing of what every step sampled, next to the training: one Parquet file per step.

The step's batches are read from the workers and written by a thread of their own. A file is
complete or absent, and its name says its step, so that a step that is repeated after a crash
replaces its own file by an equal one. Pictures and videos lie in a folder beside it.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.data.store.atomic import storage_error, sync_path
from rl_core.errors import StorageError
from rl_core.evaluation.generated_samples import save_pixels
from rl_core.runs.rollouts.columns import Limit, rows_of, schema
from rl_core.runs.rollouts.orders import note_order
from rl_core.runs.rollouts.traces import traces_of
from rl_core.runtime.background_queue import Deliveries

if TYPE_CHECKING:
    from rl_core.runs.run_folder import RunFolder
    from rl_core.tracking.run import TrackingRun
    from rl_core.trainers.step_record import StepRecord
    from schemas.recipe import Recipe

MOST_WAITING = 2
"""Steps that may wait to be written; then the training waits for the disk."""
PATIENCE_S, HASTE_S = 600.0, 5.0
ROWS_AT_ONCE = 256
"""Rows of a row group, so that a reader need not hold a whole step."""


def file_of(folder: Path, step: int) -> Path:
    """Return the file of a step."""
    return folder / f"step-{step:05d}.parquet"


class RolloutRecorder:
    """Writes the records of a run's steps, as its recipe's `tracking.rollouts` asks."""

    def __init__(
        self, recipe: Recipe, folder: RunFolder, tracking: TrackingRun | None = None
    ) -> None:
        """Create the recorder. Args: tracking: run that gets the traces that the recipe asks
        for."""
        self._recipe, self._folder, self._tracking = recipe, folder.rollouts, tracking
        self._root = folder.root
        self._most = recipe.tracking.max_rollouts
        self._queue: Deliveries[StepRecord] = Deliveries(self._write, lambda error: False)
        for leftover in self._folder.glob(".step-*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def put(self, record: StepRecord | None) -> None:
        """Write a step in the background; waits while the disk is far behind. Its order of weights
        is on disk when this returns.

        Args: record: of the step; None if the trainer, one of the user's own, keeps none.
        """
        if record is not None and record.order is not None:
            note_order(self._root, record.step, record.order)
        if self._most == 0 or record is None:
            return
        while len(self._queue) >= MOST_WAITING:
            time.sleep(0.01)
        self._queue.put(record)

    def settle(self) -> None:
        """Give the steps that are waiting a moment, before an error ends the workers that hold
        them."""
        self._queue.wait(HASTE_S)

    def flush(self) -> None:
        """Wait until every step is on disk. Raises: StorageError when one could not be written."""
        written = self._queue.wait(PATIENCE_S)
        for error in self._queue.refusals():
            raise error
        if not written:
            raise StorageError(f"{self._folder}: no step could be written for {PATIENCE_S:g} s")

    def _write(self, record: StepRecord) -> None:
        rows: list[dict[str, object]] = []
        made: list[Any] = []
        for track, portions in record.tracks.items():
            limit = Limit(self._recipe.seed, record.step, track, self._most)
            for portion in portions:
                found = rows_of(portion, track, record.step, record.items, limit)
                rows += found[0]
                made += found[1]
        seconds = sorted(record.seconds.items())
        for row in rows:
            row["step_seconds"] = seconds
        target = file_of(self._folder, record.step)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _save_media(target, rows, made, self._recipe.diffusion.video_fps)
            _save_table(target, rows)
        except OSError as error:
            raise storage_error(target, error) from error
        if self._tracking is not None:
            num, seed = self._recipe.tracking.traces, self._recipe.seed
            for trace in traces_of(rows, num, seed, record.started):
                self._tracking.log_trace(trace)


def _save_table(target: Path, rows: list[dict[str, object]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    building = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        table = pa.Table.from_pylist(rows, schema=schema())
        pq.write_table(table, building, compression="zstd", row_group_size=ROWS_AT_ONCE)
        sync_path(building)
        os.replace(building, target)
        sync_path(target.parent)
    finally:
        building.unlink(missing_ok=True)


def _save_media(target: Path, rows: list[dict[str, object]], made: list[Any], fps: int) -> None:
    """Write pictures and videos, and note their paths, relative to the folder, in the rows."""
    if all(pixels is None for pixels in made):
        return
    folder, building = target.with_suffix(""), target.with_name(f".{target.stem}.media")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    for number, (row, pixels) in enumerate(zip(rows, made, strict=True)):
        if pixels is not None:
            path = Path(save_pixels(pixels, building / f"{number:05d}", fps))
            row["made"] = f"{folder.name}/{path.name}"
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(building, folder)
