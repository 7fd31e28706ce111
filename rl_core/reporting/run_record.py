"""Records of one run, read from its folder, for reports and comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from rl_core.evaluation.compared import compared_rows
from rl_core.evaluation.row_scores import ACCURACY, MEAN_REWARD
from rl_core.evaluation.rows import PlayedRow, Row
from rl_core.evaluation.runner import read_samples
from rl_core.runs.known_runs import find_folder
from rl_core.runs.recipes import recorded_values
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.run_plan import flatten
from rl_core.runs.versions.best import RECEIPT
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import find_version
from rl_core.watch.watch import Watch, stopping
from rl_core.watch.watcher import Alarm
from schemas.receipts import ChoiceReceipt, EvalReceipt, ModelReceipt
from schemas.recipe import Recipe

SECONDS = "seconds/"
"""Prefix of a step's phase durations in its metrics."""


@dataclass(frozen=True)
class RunRecord:
    """A run, read from its folder."""

    folder: RunFolder

    @property
    def name(self) -> str:
        return self.folder.root.name

    @cached_property
    def recipe(self) -> Recipe:
        text = (self.folder.root / "recipe.yaml").read_text(encoding="utf-8")
        return Recipe.model_validate(recorded_values(yaml.safe_load(text)))

    @cached_property
    def settings(self) -> dict[str, object]:
        """The recipe's values under dotted keys."""
        return flatten(self.recipe.model_dump(mode="json"))

    @property
    def set(self) -> str | None:
        """Name of the set whose prompts decide on the champion; None for the held-out rows."""
        return self.recipe.registration.set

    @property
    def score(self) -> str:
        """Name of the score that decides on the champion."""
        score = self.recipe.registration.score
        if score == ACCURACY and self.graded:
            return MEAN_REWARD
        return score

    @property
    def score_name(self) -> str:
        """Name of the score as a person reads it, with that of its set."""
        if self.set is None:
            return self.score
        return f"{self.set} {self.score}"

    @property
    def graded(self) -> bool:
        """True if rewards are graded and nothing says which of them passes."""
        if self.set is None:
            return any(one.graded for one in self.evaluations)
        sets = [one.sets[self.set] for one in self.evaluations if self.set in one.sets]
        return any("pass@2" not in one.measures and ACCURACY not in one.measures for one in sets)

    @property
    def choice(self) -> ChoiceReceipt | None:
        """The iteration that was chosen, and why; None if the last one is registered."""
        return self.folder.receipt(RECEIPT, ChoiceReceipt)

    def value(self, evaluation: EvalReceipt) -> float:
        """Return the deciding score of an evaluation; NaN if it left out the deciding set."""
        values = evaluation.values()
        if self.set is None:
            return values[self.score]
        same = {ACCURACY: f"avg@{self.recipe.evaluation.sets[self.set].samples}"}
        names = (f"{self.set}/{name}" for name in (self.score, same.get(self.score, self.score)))
        return next((values[name] for name in names if name in values), math.nan)

    def num_compared(self, evaluation: EvalReceipt) -> int:
        """Return the number of rows, or of prompts of the deciding set."""
        found = evaluation.sets.get(self.set) if self.set is not None else None
        if found is None:
            return evaluation.num_rows
        return found.num_prompts

    @property
    def mlflow_run_id(self) -> str:
        """Id of the MLflow run, for a folder that `find_run` found, which always has one."""
        found = self.folder.mlflow_run_id
        assert found is not None
        return found

    @cached_property
    def steps(self) -> list[dict[str, float]]:
        """Metrics of every finished step, in order."""
        return self.folder.history()

    @cached_property
    def alarms(self) -> list[Alarm]:
        """Alarms of the recipe's watchers, found in the metrics, in order of their first steps."""
        return Watch(self.recipe, self.steps).alarms

    @property
    def stopped_by(self) -> Alarm | None:
        """The alarm that stopped the run; None if it ended otherwise, or goes on."""
        if self.model is None:
            return stopping(self.alarms)
        return None

    @property
    def model(self) -> ModelReceipt | None:
        """The registered version; None until the run is done."""
        return self.folder.receipt("promote-model", ModelReceipt)

    @cached_property
    def evaluations(self) -> list[EvalReceipt]:
        """Every evaluation of the run, by step; the baseline first and the final one last."""
        return self.folder.evaluations()

    def evaluation(self, label: str) -> EvalReceipt | None:
        return next((one for one in self.evaluations if one.label == label), None)

    def compared(self, label: str) -> Sequence[Row]:
        """Return the rows that are compared: held-out rows, or prompts of the deciding set; empty
        if there are none."""
        found = self.evaluation(label)
        if self.set is None or found is None:
            return self.samples(label)
        return compared_rows(found, self.recipe.registration) or []

    def samples(self, label: str) -> list[PlayedRow]:
        """Return every held-out row of an evaluation; empty if it has not run."""
        path = self.folder.root / "samples" / f"evaluate-{label}.jsonl"
        if path.is_file():
            return read_samples(path)
        return []

    def phase_seconds(self) -> dict[str, float]:
        """Return the seconds per phase over all steps, the longest first."""
        totals: dict[str, float] = {}
        for step in self.steps:
            for name, value in step.items():
                if name.startswith(SECONDS):
                    phase = name.removeprefix(SECONDS)
                    totals[phase] = totals.get(phase, 0.0) + value
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def find_run(home: Home, run: str) -> RunRecord:
    """Find a run as `find_folder` does, or by the model version it registered (`models:/...`).

    Raises: StorageError naming the candidates, or the nearest known run.
    """
    if run.startswith("models:/"):
        run = find_version(home.mlflow_uri, run).tags["run_id"]
    return RunRecord(find_folder(home, run))


def embedded_pictures(record: RunRecord) -> list[Path]:
    """Return the pictures that the run's domain made of its held-out rows."""
    return sorted((record.folder.root / "samples").glob("*.png"))
