"""The trackers of `tracking.also`, opened for one run."""

from __future__ import annotations

from rl_core.runs.recipes import dump_recipe, shown_values
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.also.copies import Copies, TrackerRun
from rl_core.tracking.run import TrackingRun
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.recipe import Recipe
from schemas.sections.tracking import Tracker


def copy_to_trackers(tracking: TrackingRun, recipe: Recipe, folder: RunFolder) -> None:
    """Let further trackers have the metrics that `tracking` gets from now on, and the recipe.

    A tracker that cannot be opened, or fails later, is left out with a note, and the MLflow tag
    `tracker.<name>` says why: the training goes on.
    """

    def trouble(name: str, error: Exception) -> None:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        sentence = f"{name} gets no more of this run: {reason[0]}"
        tracking.note_tag(f"tracker.{name}", sentence)
        announce(ProgressEvent("note", text=f"tracking.also: {sentence}; MLflow has all of it"))

    opened: dict[str, TrackerRun] = {}
    for tracker in recipe.tracking.also:
        try:
            opened[tracker] = _open(tracker, tracking, recipe, folder)
        except Exception as error:  # whatever a tracker raises, the training goes on without it
            trouble(tracker, error)
    if opened:
        tracking.copy_to(Copies(opened, folder.trackers / "sent.jsonl", trouble))


def _open(tracker: Tracker, tracking: TrackingRun, recipe: Recipe, folder: RunFolder) -> TrackerRun:
    # Here, since each imports its package.
    if tracker is Tracker.TENSORBOARD:
        from rl_core.tracking.also.tensorboard import TensorBoardRun

        return TensorBoardRun(folder.trackers / tracker, dump_recipe(recipe))
    from rl_core.runs.run_plan import flatten
    from rl_core.tracking.also.wandb_run import WandbRun

    config = flatten(shown_values(recipe))
    return WandbRun(folder.trackers, tracking.run_id, folder.root.name, config)
