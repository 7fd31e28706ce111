"""TensorBoard: event files in the run's folder; `tensorboard --logdir FOLDER` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class TensorBoardRun:
    """A folder of event files; a run that goes on adds a file to it.

    Args: recipe: text of the recipe, stored once.
    """

    def __init__(self, folder: Path, recipe: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        is_new = not folder.is_dir()
        self._writer = SummaryWriter(str(folder))
        if is_new:
            self._writer.add_text("recipe", f"```yaml\n{recipe}\n```")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write finite metrics of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, *, succeeded: bool) -> None:
        """Close the file."""
        self._writer.close()
