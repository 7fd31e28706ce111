"""Base class of preparation stages: settings, inputs and build."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, Literal, TypeVar

from pydantic import Field

from rl_core.data.prepare.job import Job
from rl_core.data.prepare.workers import Advance, Runner, num_cores, run_here, run_in_processes
from rl_core.data.read.raw_dir import missing_files
from rl_core.data.store.atomic import atomic_write_text
from rl_core.data.store.publish import Built
from rl_core.errors import DataError, RLTrainError
from rl_core.runtime.registry import PluginConfig
from rl_core.runtime.user_paths import real_path, user_path
from schemas.receipts import SourceFile
from schemas.rows.problems import Problem

Progress = Callable[[str, int, int], None]
"""Callback that receives the phase, the work done in it, and the total (0: unknown)."""

MAX_EXAMPLES = 10
SMALL_BYTES = 8 * 2**20
_PLACES = frozenset({"stage", "input_dir", "output_dir", "num_workers", "ray_address"})
"""Settings of paths and speed, which do not affect the result."""


class StageConfig(PluginConfig):
    """Settings that every stage has."""

    stage: str
    """Name of the stage: `mpo`, `text`, `vision` or `diffusion`. In its place stands `target:
    my_pkg.my_module:MyStage` for a class of your own."""
    dataset_name: str
    """Name of the data in the summary and in the artifact's metadata."""
    source_uri: str | None = None
    """Source `hf://owner/name[@revision]` or an address (s3, gs, https), fetched into `input_dir`
    if that is not complete."""
    input_dir: Path
    """Folder of the raw files."""
    output_dir: Path
    """Folder that becomes the cache; replaced as a whole."""
    on_invalid: Literal["fail", "drop"] = "fail"
    """Action on a bad row: end the preparation, or drop and count the row."""
    max_bad_fraction: float = Field(default=0.0, ge=0, le=1)
    """With `on_invalid: drop`: the preparation fails if more than this share of the rows is bad."""
    num_workers: int | None = Field(default=None, ge=1)
    """Processes for the heavy part; unset means every core."""
    ray_address: str | None = None
    """Ray cluster that does the heavy part; all its machines must see `input_dir` and
    `output_dir`."""


@dataclass
class Tally:
    """Counts of a stage's rows, and of the reasons why some were left out."""

    total: int = 0
    kept: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def refuse(self, reason: str, place: str, problem: str) -> None:
        """Count a bad row under `reason`, and keep the first few as examples."""
        self.total += 1
        self.reasons[reason] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{place} {problem}")

    def keep(self, count: int = 1) -> None:
        """Count good rows."""
        self.total += count
        self.kept += count

    def add(self, other: "Tally") -> None:
        """Add the rows of another part of the input."""
        self.total += other.total
        self.kept += other.kept
        self.reasons.update(other.reasons)
        self.examples += other.examples[: MAX_EXAMPLES - len(self.examples)]

    def counts(self) -> dict[str, int]:
        """Return `total`, `kept`, and one count per reason."""
        return {"total": self.total, "kept": self.kept, **dict(sorted(self.reasons.items()))}

    def apply(self, config: StageConfig, where: Path) -> None:
        """Apply the policy for bad rows.

        Raises: DataError when the policy refuses these rows, or none is left.
        """
        bad = self.total - self.kept
        listed = "".join(f"\n  {example}" for example in self.examples)
        found = f"{where}: {bad} of {self.total} rows cannot be used"
        if not self.kept:
            raise DataError(f"{found}, so none is left and nothing is published{listed}")
        if config.on_invalid == "fail" and bad:
            raise DataError(
                f"{found}; fix them, or set on_invalid=drop and max_bad_fraction{listed}"
            )
        if bad > config.max_bad_fraction * self.total:
            raise DataError(
                f"{found}, more than max_bad_fraction {config.max_bad_fraction:g} allows{listed}"
            )


@dataclass(frozen=True)
class Context:
    """Resources of a build besides its settings."""

    progress: Progress = lambda _phase, _done, _total: None
    run: Runner = run_in_processes

    def runner(self, num_bytes: int) -> Runner:
        """Return the runner for jobs over that many bytes: small ones run in this process, which is
        faster than starting another."""
        if num_bytes > SMALL_BYTES:
            return self.run
        return run_here

    def advance(self, phase: str, total: int) -> Advance:
        """Return a progress counter for one phase."""
        done = [0]

        def add(count: int) -> None:
            done[0] += count
            self.progress(phase, done[0], total)

        add(0)
        return add


ConfigT = TypeVar("ConfigT", bound=StageConfig)


class Stage(ABC, Generic[ConfigT]):
    """One kind of preparation. Subclasses are registered by name; each has a nested `Config`."""

    code_version: ClassVar[str]
    """Version of the stage's code, raised whenever the same inputs would give other bytes."""
    artifact: ClassVar[str]
    """Name under which the result is registered."""
    sentinel: ClassVar[str] = ".ready"
    required: tuple[str, ...] = ()
    """Raw files that a complete input must have; empty accepts any content."""
    env_name: ClassVar[str | None] = None
    """Environment variable that may name the raw folder."""
    target: str | None = None
    """`module:Class` of a stage from outside the project, which is part of the run hash."""

    def __init__(self, config: ConfigT) -> None:
        self.config = config
        self.input_dir = user_path(config.input_dir)
        self._check_places()

    @property
    def output(self) -> Path:
        """The folder that is published."""
        return real_path(self.config.output_dir)

    @property
    def artifact_path(self) -> Path:
        """File or folder that the artifact's name refers to."""
        return self.output

    @property
    def num_workers(self) -> int:
        return self.config.num_workers or num_cores()

    def missing(self) -> list[str]:
        """Return the raw files that are missing."""
        return missing_files(self.input_dir, self.required)

    @abstractmethod
    def inputs(self) -> Mapping[str, Path]:
        """Return every file that is read, by a label that does not depend on its location. Raises:
        DataError."""

    @abstractmethod
    def build(self, work: Path, context: Context) -> Built:
        """Fill `work`. Raises: DataError when the rows cannot be used; after any error nothing is
        published."""

    @abstractmethod
    def check(self, work: Path, built: Built) -> None:
        """Open the finished work as training does. Raises: DataError when it differs from what was
        counted."""

    def parameters(self) -> dict[str, str]:
        """Return the settings that affect the result, as parts of the run hash."""
        values = self.config.model_dump(mode="json", exclude=set(_PLACES))
        # A source that is fetched counts by its files and its commit, wherever it came from.
        values.pop("source_uri")
        texts: dict[str, str] = {}
        for key, value in values.items():
            texts[key] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        return texts

    def job(self, sources: Mapping[str, SourceFile], revision: str | None) -> Job:
        """Return the preparation job for these inputs."""
        named = self.target or self.config.stage
        parts = {"stage": named, "code version": self.code_version, **self.parameters()}
        parts |= {"revision": revision} if revision else {}
        details = {
            "artifact": self.artifact,
            "artifact_path": str(self.artifact_path),
            "source_uri": self.config.source_uri,
            "revision": revision,
        }
        parts |= {label: source.sha256 for label, source in sources.items()}
        return Job(
            self.config.stage,
            self.output,
            parts,
            list(sources.values()),
            self.sentinel,
            details=details,
        )

    def _check_places(self) -> None:
        raw, output = real_path(self.input_dir), self.output
        if raw.exists() and not raw.is_dir():
            raise DataError(f"input_dir {raw}: a file; name the folder of the raw files")
        if raw == output or raw in output.parents or output in raw.parents:
            raise DataError(
                f"output_dir {output} and input_dir {raw} lie inside each other; the output "
                "replaces its folder"
            )


def refuse_disagreement(work: Path, num_rows: int, built: Built) -> None:
    """Compare the loader's row count with the preparation's.

    Raises: RLTrainError when they differ; nothing is published then.
    """
    if num_rows != built.counts["kept"]:
        raise RLTrainError(
            f"{work}: the loader finds {num_rows} rows, preparation kept {built.counts['kept']}"
        )


def write_json(path: Path, value: object) -> None:
    """Write indented JSON with sorted keys and a final newline."""
    atomic_write_text(path, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n")


def write_preview(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write a few rows for people to look at, one JSON object per line."""
    atomic_write_text(
        path, "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
    )


def slug(problem: Problem) -> str:
    """Return a problem's reason as a counter's name: `question_missing`."""
    words = f"{problem.field.partition('[')[0].partition('.')[0]} {problem.reason}".replace(
        "-", " "
    ).split()
    return "_".join(word for word in words if word.isidentifier() or word.isdigit()).lower()
