"""Results of tasks: small frozen records of hashes, paths, counts and metrics. They never hold
tensors."""

import hashlib
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Receipt(BaseModel):
    """Base of all receipts: immutable, JSON-serialisable, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Rejection(Receipt):
    """A refused row, and the reason."""

    file: str
    row: int
    """Row number, from 1; the line number for line-based formats."""
    field: str
    reason: str
    """Short class of the problem, equal for all rows that share it."""
    value: str
    """The offending value, shortened."""
    expected: str

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.row} field {self.field}: {self.reason}, got {self.value}; "
            f"expected {self.expected}"
        )


class RowGroup(Receipt):
    """Rows with the same problem in the same field."""

    field: str
    reason: str
    count: int
    first: list[Rejection]
    """The first rows of the group."""


class SourceFile(Receipt):
    """An input file and the digest of its content."""

    path: str
    num_bytes: int
    mtime_ns: int
    sha256: str


class OverlapKind(StrEnum):
    """Way in which a training row repeats a held-out row or a row of a benchmark."""

    SAME = "same question"
    """All words agree, apart from sentences that stand around most questions of a file."""
    WITHIN = "holds the question"
    """The training row has at least half of the other row's n-grams of 13 words."""
    NEAR = "nearly the same"
    """At least 80 % of the 3-grams of both rows are in both."""


class Overlap(Receipt):
    """A training row that repeats a row which the model is measured on."""

    file: str
    row: int
    other_file: str
    """File of the held-out row, or of the benchmark."""
    other_row: int
    benchmark: bool
    """True if the other row is of a benchmark, False if it is held out by the recipe."""
    kind: OverlapKind
    share: float
    """Share of n-grams in common, from 0 to 1: of the other row's, or of both rows' where they are
    nearly the same."""
    passage: str
    """The longest passage in common, in normalised words, shortened."""
    verbatim: bool
    """True if both rows ask the same, letter by letter."""

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.row} and {self.other_file}:{self.other_row}: {self.kind}, share "
            f"{self.share:.2f}, {self.passage!r}"
        )


class OverlapCount(Receipt):
    """Number of training rows of one file that repeat rows of another."""

    file: str
    other_file: str
    benchmark: bool
    count: int
    first: list[Overlap]
    """The first of these rows."""


class ContaminationReport(Receipt):
    """Training rows that repeat held-out rows or rows of benchmarks."""

    policy: str
    """Action of a run: report, drop or fail."""
    num_rows: int
    """Number of training rows that repeat at least one other row."""
    pairs: list[OverlapCount]
    """The rows by pair of files, most frequent first."""
    path: str
    """JSON Lines file with all of them."""


class ValidationReport(Receipt):
    """Result of validate-data over all files of a recipe."""

    files: list[SourceFile]
    num_training_files: int = 0
    """Number of `files`, from the start of the list, that are trained on; the others are held
    out."""
    schemas: dict[str, str] = Field(default_factory=dict)
    """Contract that the rows of each file were validated against: prompt, media, preference or
    response."""
    num_rows: int
    num_accepted: int
    rejected_by_reason: dict[str, int]
    """Number of problems by kind, most frequent first; a row may have several."""
    examples: list[Rejection]
    """The first refused rows, and the first of every reason; `rejects_path` lists all."""
    problems: list[RowGroup] = Field(default_factory=list)
    """All problems by field and kind, most frequent first."""
    warnings: list[RowGroup] = Field(default_factory=list)
    """Rows that are used but hardly teach anything, such as those whose reward nobody can earn;
    `warnings_path` lists all."""
    names_files: bool = False
    """True if rows name pictures that lie in files of their own, which may change by themselves."""
    untried: dict[str, str] = Field(default_factory=dict)
    """Reasons why the rows of an environment were not built, or not played."""
    rejects_path: str | None = None
    warnings_path: str | None = None
    contamination: ContaminationReport | None = None
    """Training rows that repeat rows which the model is measured on; None if nothing was held
    against them."""
    cached: bool = False
    """True if the same files were validated before with the same schema and environments."""
    explanation: str
    """Reason why the report was, or was not, taken from the cache."""

    @property
    def num_rejected(self) -> int:
        return self.num_rows - self.num_accepted


class PrepStatus(StrEnum):
    """Progress of a data preparation."""

    STARTED = "started"
    """The preparation is running, or was killed before it could report an end."""
    COMPLETED = "completed"
    """The result is published."""
    FAILED = "failed"
    """The preparation raised an error; nothing was published."""


class PrepReceipt(Receipt):
    """A data preparation: its inputs, output and duration, or the reason why it failed."""

    name: str
    """Name of the stage (`mpo`, `text`, `vision`, `diffusion`) or recipe."""
    status: PrepStatus
    run_hash: str
    """Digest over code version, parameters, input contents and revision; never the output path."""
    output: str
    """Path of the published folder."""
    hit: bool = False
    explanation: str
    """Reason why the cache was a hit, or the input that changed."""
    row_stats: dict[str, int] = Field(default_factory=dict)
    """Number of rows in total, rows kept, and refused rows by reason."""
    sources: list[SourceFile]
    source_uri: str | None = None
    revision: str | None = None
    """Commit that `source_uri` pointed to when it was fetched."""
    hash_parts: dict[str, str]
    num_files: int = 0
    files_digest: str = ""
    """sha256 over the paths and digests of all published files; the sentinel lists them one by
    one."""
    artifact: str | None = None
    """Name under which the result is registered, for example `omni3/rl/vision/data`."""
    artifact_path: str | None = None
    """File or folder of the output that the artifact name points to."""
    process: str = ""
    """Process that built the output, as pid@host."""
    started_at: str
    finished_at: str | None = None
    elapsed_sec: float = 0.0
    error: str | None = None
    traceback: str | None = None


class SetCache(Receipt):
    """The prepared rows of one named set of held-out rows."""

    run_hash: str
    path: str
    """Parquet file of the rows."""
    num_rows: int
    dropped: dict[str, int]
    """Rows left out by preparation, by reason."""


class CacheReceipt(Receipt):
    """Result of prepare-cache: the path of the prepared rows and the inputs they were made from."""

    run_hash: str
    """Digest over schema version, code version, parameters and input contents; never the output
    path."""
    path: str
    """Folder with train.parquet, eval.parquet and the sentinel."""
    hit: bool
    explanation: str
    """Reason why the cache was a hit, or the input that changed."""
    num_train_rows: int
    num_eval_rows: int
    dropped: dict[str, int]
    """Rows left out by preparation, by reason (for example too_long)."""
    sources: list[SourceFile]
    hash_parts: dict[str, str]
    places: dict[str, str] = Field(default_factory=dict)
    """Current path of each published cache (by run hash) or file (by sha256) that the prepared rows
    refer to."""
    sets: dict[str, SetCache] = Field(default_factory=dict)
    """Prepared rows of the sets in `evaluation.sets`, by name."""

    @property
    def identity(self) -> str:
        """The run hash, or with named sets a digest over theirs as well."""
        if not self.sets:
            return self.run_hash
        parts = [self.run_hash, *(f"{name}:{one.run_hash}" for name, one in self.sets.items())]
        return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


class IterationReceipt(Receipt):
    """Result of one train-iteration: its final checkpoint and its mean metrics."""

    iteration: int
    """Number of the iteration, from 1."""
    first_step: int
    last_step: int
    checkpoint: str
    metrics: dict[str, float]
    skipped: bool = False
    """True if an earlier run with the same run key had already finished this iteration."""


class Measure(Receipt):
    """A mean over prompts with its 95 % interval."""

    value: float
    low: float
    high: float


class SetReceipt(Receipt):
    """Result of an evaluation on one named set."""

    num_prompts: int
    num_samples: int
    """Samples of each prompt."""
    num_failed: int
    """Samples without a verdict, since their environment or a scorer failed; no measure counts
    them."""
    measures: dict[str, Measure]
    """Measures by name, such as `mean_reward`, `pass@4` or `format_rate`."""
    sources: dict[str, dict[str, Measure]]
    """The same measures of the rows of each `data_source`; empty if there is only one."""
    samples_path: str
    """JSONL file with prompt, answer and reward of every sample."""
    eval_digest: str


class EvalReceipt(Receipt):
    """Result of one evaluation on the held-out rows."""

    label: str
    """Name of the evaluation: `baseline`, `iteration-3` or `final`."""
    step: int
    num_rows: int
    accuracy: float
    """Share of held-out rows with full reward; for pairs, share whose chosen answer is
    preferred."""
    mean_reward: float
    ci_low: float
    """Lower end of the 95 % interval of the accuracy (Wilson)."""
    ci_high: float
    mean_length: float
    truncated_share: float
    samples_path: str
    """JSONL file with prompt, answer and reward of every held-out row."""
    eval_digest: str
    skipped: bool = False
    scores: dict[str, float] = Field(default_factory=dict)
    """Means of the domain's further metrics, by name."""
    graded: bool = False
    """True if rewards are graded and nothing says which of them passes: then the accuracy, the
    share of full reward, says little."""
    num_failed: int = 0
    """Rows without a verdict, since their environment or a scorer failed; no score counts them."""
    sets: dict[str, SetReceipt] = Field(default_factory=dict)
    """Results on the named sets of `evaluation.sets`."""

    def values(self) -> dict[str, float]:
        """Return every score by name: accuracy, mean reward, the domain's further metrics, and the
        measures of named sets as `<set>/<measure>`."""
        measured = {}
        for name, one in self.sets.items():
            for measure, found in one.measures.items():
                measured[f"{name}/{measure}"] = found.value
        return {
            "accuracy": self.accuracy,
            "mean_reward": self.mean_reward,
            **self.scores,
            **measured,
        }


class News(Receipt):
    """Result of look-for-news: whether a retraining has anything new to train on, and its initial
    weights."""

    train: bool
    reason: str
    """Inputs that changed since a given version, or a sentence that nothing did."""
    start_from: str | None
    """Folder of the champion's weights; None starts from the recipe's model."""
    fresh: bool
    """True if the same training was finished before and has to start over."""


class ChoiceReceipt(Receipt):
    """Result of choose-iteration: the iteration that is exported and registered."""

    iteration: int
    last: int
    """Number of the last iteration."""
    reason: str

    def __str__(self) -> str:
        last = ", the last one" if self.iteration == self.last else f" of {self.last}"
        return f"iteration {self.iteration}{last} is registered: {self.reason}"


class ExportReceipt(Receipt):
    """Result of export-model: the folder that is evaluated and then registered."""

    model_path: str
    iteration: int | None = None
    """Iteration whose weights were written; None in receipts from before there was a choice."""
    weights_digest: str
    """Digest of the weights as written."""


class VersionReceipt(Receipt):
    """Result of register-model: the version number of the exported model."""

    name: str
    version: int
    model_path: str


class ScoreChange(Receipt):
    """Change of one score between two models on the same held-out rows."""

    score: str
    before: float
    after: float
    low: float
    """Lower end of the 95 % interval of the change (paired bootstrap)."""
    high: float
    confidence: float
    """Bootstrap confidence that the change exceeds the margin."""
    held: bool = True
    """False if this score prevents a promotion."""

    @property
    def change(self) -> float:
        return self.after - self.before


class GateReceipt(Receipt):
    """Result of judge-model: whether the new version may become champion, and the reason."""

    compared_with: str
    """Name of the incumbent: `champion v3` or `baseline`."""
    decided_by: ScoreChange | None
    """Score that decided; None if the incumbent could not be compared with."""
    guards: list[ScoreChange]
    margin: float
    confidence: float
    """Confidence that the recipe requires."""
    passed: bool
    reason: str


class Approval(Receipt):
    """Decision of a person about a version that passed the gate, or that none was asked."""

    given: bool
    by: str = ""
    """Name of the person who decided; empty if nobody was asked."""
    reason: str = ""


class ModelReceipt(Receipt):
    """Result of promote-model: the version, and whether it became champion."""

    name: str
    version: int
    model_path: str
    gate: GateReceipt
    promoted: bool
    reason: str


class ChainReceipt(Receipt):
    """Result of a chain whose every stage was promoted."""

    name: str
    stages: dict[str, ModelReceipt]
    """Results of the stages by name, in their order."""


class RunPlan(Receipt):
    """Plan of a training run: its recipe, its prepared data and the folder of its state."""

    run_key: str
    """Digest of recipe and data; a run with the same key continues."""
    run_dir: str
    recipe: dict[str, Any]
    cache: CacheReceipt
    mlflow_run_id: str
    mlflow_url: str
    origin: dict[str, str] = Field(default_factory=dict)
    """Digests of the training's inputs: `data`, `code`, `recipe`. A retraining compares them to see
    if any is new."""
