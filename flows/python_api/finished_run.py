"""A run as a notebook reads it: its metrics, evaluations and samples as data frames."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.reporting.run_record import RunRecord, find_run
from rl_core.runtime.home import Home

if TYPE_CHECKING:
    import pandas as pd

    from schemas.recipe import Recipe


class Run:
    """A run on disk, finished or not. What it holds is read when it is first asked for."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    @property
    def name(self) -> str:
        """Name of the run's folder, by which every command finds it."""
        return self._record.name

    @property
    def folder(self) -> Path:
        """Folder of the run's files."""
        return self._record.folder.root

    @property
    def recipe(self) -> Recipe:
        """The recipe with every default."""
        return self._record.recipe

    @property
    def model(self) -> str | None:
        """Reference of the registered version, `models:/NAME/VERSION`; None if none was
        registered."""
        found = self._record.model
        return None if found is None else f"models:/{found.name}/{found.version}"

    @property
    def is_champion(self) -> bool:
        """True if the version became champion at the end of the run."""
        return self._record.model is not None and self._record.model.promoted

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Metrics of every step of the complete iterations, a row a step, a column a metric."""
        import pandas as pd

        steps = pd.DataFrame(self._record.steps)
        return steps.set_index("step") if len(steps) else steps

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """Scores of every evaluation, a row each by its label: `baseline` first, `final` last."""
        import pandas as pd

        rows = []
        for one in self._record.evaluations:
            rows.append({"label": one.label, "step": one.step, "rows": one.num_rows} | one.values())
        return pd.DataFrame(rows).set_index("label") if rows else pd.DataFrame(rows)

    def samples(self, label: str = "final") -> pd.DataFrame:
        """Return the held-out rows of an evaluation, with replies and rewards; empty if it has not
        run."""
        import pandas as pd

        return pd.DataFrame(self._record.samples(label))

    def report(self) -> Path:
        """Write the report, one HTML page, and return its path."""
        from rl_core.reporting.report import write_report

        return Path(write_report(self._record, Home.default(), None))

    def __repr__(self) -> str:
        state = self.model or "no version registered"
        return f"<Run {self.name}: {len(self._record.steps)} steps, {state}>"


def open_run(name: str) -> Run:
    """Return a run of this home by the name of its folder, its MLflow run id, or the version that
    it registered. Raises: StorageError naming the nearest known one."""
    home = Home.default()
    home.activate()
    return Run(find_run(home, name))
