"""Recording of single steps by the torch profiler, `tracking.profile`: a trace per worker process,
in the run's folder and in MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_core.distributed import per_rank, remote_everywhere
from rl_core.distributed.step_profiler import StepProfiler
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.run import TrackingRun
from rl_core.trainers.base import Trainer
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.recipe import Recipe


@contextmanager
def profiled(
    recipe: Recipe, folder: RunFolder, tracking: TrackingRun, trainer: Trainer
) -> Iterator[None]:
    """Record what the workers of `trainer` compute within the block, if the step that it trains is
    one of `tracking.profile.steps`.

    Args: trainer: its next step is the one. A trainer of the user's without `groups`, blocks of
    workers, is not recorded.
    """
    wanted, step = recipe.tracking.profile, trainer.step_count + 1
    if wanted is None or step not in wanted.steps:
        yield
        return
    profilers = [
        profiler
        for block in getattr(trainer, "groups", ())
        for profiler in remote_everywhere(block, StepProfiler)
    ]
    for profiler in profilers:
        profiler.start()
    yield
    written: list[str] = []
    for number, profiler in enumerate(profilers):
        # Several groups of processes, as with a dedicated engine, have a rank 0 each.
        group = f"-group-{number}" if len(profilers) > 1 else ""
        traces = per_rank(profiler.stop)(str(folder.profiles), f"step-{step:05d}{group}")
        written += [trace for trace in traces if trace is not None]
    for trace in written:
        if Path(trace).is_file():  # workers on other machines may have a disk of their own
            tracking.log_artifact(Path(trace), folder.profiles.name)
    said = f"step {step} was recorded: {folder.profiles} (for ui.perfetto.dev)"
    if not written:
        said = f"step {step} was not recorded: {type(trainer).__name__} has no blocks of workers"
    announce(ProgressEvent("note", text=f"tracking.profile: {said}"))
