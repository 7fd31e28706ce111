"""Weights & Biases: a run with the id of the MLflow run, which every process that goes on with the
training continues.

wandb's own step only grows, while an evaluation belongs to a step that was logged before it. So the
step is a metric of its own (`step`), and the axis of all others. Environment variables of wandb
(`WANDB_MODE`, `WANDB_PROJECT`, `WANDB_ENTITY`, ...) hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

STEP = "step"
PROJECT = "rl-train"
FLUSH_S = 0.1
"""Seconds after which wandb's process has written a step to its file."""


class WandbRun:
    """A run in W&B.

    Args: folder: place of its local files. run_id, name: of the MLflow run. config: flat settings.
    """

    def __init__(self, folder: Path, run_id: str, name: str, config: Mapping[str, object]) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=run_id,
            name=name,
            dir=str(folder),
            config=dict(config),
            resume="allow",
            allow_val_change=True,
            settings=wandb.Settings(
                # The terminal belongs to the display of `rl-train run`.
                silent=True,
                console="off",
                # wandb's 15 s would lose the last steps of a process that is killed.
                x_transaction_log_flush_interval=FLUSH_S,
            ),
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand finite metrics of a step to wandb's own process, which stores and sends them."""
        self._run.log({**metrics, STEP: step})

    def finish(self, *, succeeded: bool) -> None:
        """Send what is left and end the run."""
        self._run.finish(exit_code=0 if succeeded else 1)
