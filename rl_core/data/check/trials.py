"""Rows that passed their contract, tried with their environments: each is built, a sample is
played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from rl_core.data.prepare.parallel import num_cores
from rl_core.data.prepare.prompt_items import env_extras
from rl_core.data.read.files.parquet_files import open_parquet
from rl_core.data.read.readers import raw_values
from rl_core.envs.trials.pool import TrialPool
from rl_core.envs.trials.settings import Finding, Trial, TrialSettings, Verdict
from schemas.receipts import Rejection
from schemas.rows.problems import Problem, is_missing

REFUSED_BY = "refused by "
"""Beginning of the reason of a row that its environment refuses."""
NUM_MEASURED = 50
"""Rows from whose size the number of rows of a text file is estimated."""


@dataclass
class Tried:
    """Result of trying some rows."""

    rejections: list[Rejection] = field(default_factory=list)
    warnings: list[Rejection] = field(default_factory=list)
    """Rows with a reward that nobody can earn, or that everybody earns."""
    untried: dict[str, str] = field(default_factory=dict)
    """Reason why rows were not built or not played, by environment and what was not done."""


class RowTrials:
    """Tries rows of any file. A context manager that ends its processes.

    Args: default_env_class: environment of rows that name none. num_workers: processes; 0 means one
    for each core.
    """

    def __init__(
        self, settings: TrialSettings, default_env_class: str | None, num_workers: int = 0
    ) -> None:
        self.default_env_class = default_env_class
        self._pool = TrialPool(settings, num_workers or num_cores())

    def __enter__(self) -> RowTrials:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.close()

    def __call__(
        self,
        rows: Sequence[Mapping[str, object]],
        numbers: Sequence[int],
        file: str,
        oracle_stride: int = 0,
    ) -> Tried:
        """Try rows that passed their contract; the prompt may be left out where a row is not
        played.

        Args: oracle_stride: every how many rows one is played; 0 plays none.
        """
        trials = [
            self._trial(row, is_played(number, oracle_stride))
            for row, number in zip(rows, numbers, strict=True)
        ]
        tried = Tried()
        for finding in self._pool.findings(trials):
            trial, number = trials[finding.index], numbers[finding.index]
            if finding.verdict in (Verdict.NOT_BUILT, Verdict.NOT_PLAYED):
                tried.untried[f"{trial.env_class} rows are {finding.verdict}"] = finding.message
                continue
            problem = _problem(finding, trial).rejection(file, number)
            refused = finding.verdict is Verdict.REFUSED
            (tried.rejections if refused else tried.warnings).append(problem)
        return tried

    def _trial(self, row: Mapping[str, Any], is_played: bool) -> Trial:
        name = row.get("env_class")
        extras = env_extras(row)
        prompt = list(row.get("prompt") or []) if is_played else None
        return Trial(str(self.default_env_class if is_missing(name) else name), extras, prompt)


def row_trials(
    settings: TrialSettings | None, default_env_class: str | None, num_workers: int = 0
) -> AbstractContextManager[RowTrials | None]:
    """Return what tries rows, for a `with` block; it gives None if no row is to be tried.

    Args: as for `RowTrials`.
    """
    if settings is None:
        return nullcontext()
    return RowTrials(settings, default_env_class, num_workers)


def is_played(number: int, stride: int) -> bool:
    """Return True if the row of this number is one of the sample."""
    return stride > 0 and (number - 1) % stride == 0


def oracle_stride(path: Path, oracle_rows: int | None) -> int:
    """Return every how many rows of a file one is played, to play about `oracle_rows`, or None for
    all; 0 plays none."""
    if oracle_rows is None:
        return 1
    if oracle_rows:
        return max(1, _num_rows_about(path) // oracle_rows)
    return 0


def _num_rows_about(path: Path) -> int:
    if path.suffix.lower() == ".parquet":
        with open_parquet(path) as table:
            return table.metadata.num_rows
    first = list(islice(raw_values(path, on_bad_line=lambda *_: None), NUM_MEASURED))
    if len(first) < NUM_MEASURED:
        return len(first)
    return path.stat().st_size * NUM_MEASURED // max(1, sum(raw.num_bytes for raw in first))


def _problem(finding: Finding, trial: Trial) -> Problem:
    name = trial.env_class
    if finding.verdict is not Verdict.REFUSED:
        truth = _value(trial, "reward_spec.ground_truth")
        return Problem("reward_spec.ground_truth", f"{finding.verdict}", truth, finding.message)
    field_name = finding.field or "env_class"
    return Problem(
        field_name,
        f"{REFUSED_BY}{name}",
        name if field_name == "env_class" else _value(trial, field_name),
        f"a row that it takes ({finding.message})",
    )


def _value(trial: Trial, dotted: str) -> object:
    """Return the value at a dotted path of a row or its `extra_info`; None where it has none."""
    extra = trial.extras.get("extra_info")
    for start in (trial.extras, extra if isinstance(extra, Mapping) else {}):
        value: object = start
        for name in dotted.partition("[")[0].split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None
