"""What a task returns: small frozen records of hashes, paths, counts and metrics. Tensors never travel here."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Receipt(BaseModel):
    """Base of all receipts: immutable, JSON round trip, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Rejection(Receipt):
    """One row that was refused, and why."""

    file: str
    row: int
    """Row number, from 1, or the line number for line-based formats."""
    field: str
    reason: str
    """A short class of problem, the same for all rows that share it."""
    value: str
    """The offending value, shortened."""
    expected: str

    def __str__(self) -> str:
        return f"{self.file}:{self.row} field {self.field}: {self.reason}, got {self.value}; expected {self.expected}"


class SourceFile(Receipt):
    """An input file and its content identity."""

    path: str
    num_bytes: int
    mtime_ns: int
    sha256: str


class ValidationReport(Receipt):
    """Outcome of validate-data over all files of a recipe."""

    files: list[SourceFile]
    num_training_files: int = 0
    """How many of `files`, from the first, are trained on; the others are held out."""
    schemas: dict[str, str] = Field(default_factory=dict)
    """File -> the contract its rows were held to: prompt, media, preference or response."""
    num_rows: int
    num_accepted: int
    rejected_by_reason: dict[str, int]
    """Problems by kind, most frequent first; a row may have several."""
    examples: list[Rejection]
    """The first refused rows, and the first of every reason; all of them are in `rejects_path`."""
    rejects_path: str | None = None
    cached: bool = False
    """True when the same files had been validated before under the same schema and environments."""
    explanation: str
    """Why this was, or was not, taken from the cache."""

    @property
    def num_rejected(self) -> int:
        return self.num_rows - self.num_accepted


class PrepStatus(StrEnum):
    """How far a preparation came."""

    STARTED = "started"
    """It is at work, or was killed: no other word followed."""
    COMPLETED = "completed"
    """Its result is published."""
    FAILED = "failed"
    """It raised; nothing of it was published."""


class PrepReceipt(Receipt):
    """One preparation: what went in, what came out, how long it took, or why it failed."""

    name: str
    """Stage (`mpo`, `text`, `vision`, `diffusion`) or recipe."""
    status: PrepStatus
    run_hash: str
    """Digest over code version, parameters, input contents and revision; never the output path."""
    output: str
    """The published folder."""
    hit: bool = False
    explanation: str
    """Why it was a hit, or which input changed."""
    row_stats: dict[str, int] = Field(default_factory=dict)
    """Rows in total, kept, and one count per reason of refusal."""
    sources: list[SourceFile]
    source_uri: str | None = None
    revision: str | None = None
    """Commit that `source_uri` stood for when it was fetched."""
    hash_parts: dict[str, str]
    num_files: int = 0
    files_digest: str = ""
    """sha256 over the paths and digests of all published files; the sentinel lists them singly."""
    artifact: str | None = None
    """Name under which the result is registered, such as `omni3/rl/vision/data`."""
    artifact_path: str | None = None
    """What the name stands for: a file of the output, or the output itself."""
    process: str = ""
    """pid@host of the builder."""
    started_at: str
    finished_at: str | None = None
    elapsed_sec: float = 0.0
    error: str | None = None
    traceback: str | None = None


class CacheReceipt(Receipt):
    """Outcome of prepare-cache: where the prepared rows lie and what they were made from."""

    run_hash: str
    """Digest over schema version, code version, parameters and input contents; never the output path."""
    path: str
    """Folder with train.parquet, eval.parquet and the sentinel."""
    hit: bool
    explanation: str
    """Why it was a hit, or which input changed."""
    num_train_rows: int
    num_eval_rows: int
    dropped: dict[str, int]
    """Rows left out by preparation, by reason (for example too_long)."""
    sources: list[SourceFile]
    hash_parts: dict[str, str]
    places: dict[str, str] = Field(default_factory=dict)
    """Where what the prepared rows point into lies: run hash of a published cache, or sha256 of a file -> path."""


class IterationReceipt(Receipt):
    """Outcome of one train-iteration: the checkpoint it ended in and its mean metrics."""

    iteration: int
    """From 1."""
    first_step: int
    last_step: int
    checkpoint: str
    metrics: dict[str, float]
    skipped: bool = False
    """True when an earlier run with the same run key had already finished this iteration."""


class EvalReceipt(Receipt):
    """Outcome of one evaluation on the held-out rows."""

    label: str
    """`baseline`, `iteration-3` or `final`."""
    step: int
    num_rows: int
    accuracy: float
    """Share of held-out rows with full reward; of pairs, those of which the chosen answer is preferred."""
    mean_reward: float
    ci_low: float
    """95 % interval of the accuracy (Wilson)."""
    ci_high: float
    mean_length: float
    truncated_share: float
    samples_path: str
    """JSONL with prompt, answer and reward of every held-out row."""
    eval_digest: str
    skipped: bool = False
    scores: dict[str, float] = Field(default_factory=dict)
    """Means of what the domain measures besides, by name."""

    def values(self) -> dict[str, float]:
        """Every score by name: accuracy, mean reward and what the domain measures besides."""
        return {"accuracy": self.accuracy, "mean_reward": self.mean_reward, **self.scores}


class News(Receipt):
    """Outcome of look-for-news: whether a retraining has anything to learn, and from where it starts."""

    train: bool
    reason: str
    """What changed since which version, or that nothing did."""
    start_from: str | None
    """Folder of the champion's weights; None starts from the recipe's model."""
    fresh: bool
    """True when the same training was finished before, so that it has to be done anew."""


class ExportReceipt(Receipt):
    """Outcome of export-model: the folder that is evaluated and then registered."""

    model_path: str
    weights_digest: str
    """Of the weights as they were written."""


class VersionReceipt(Receipt):
    """Outcome of register-model: the exported model, under a number of its own."""

    name: str
    version: int
    model_path: str


class ScoreChange(Receipt):
    """One score of two models on the same held-out rows."""

    score: str
    before: float
    after: float
    low: float
    """95 % interval of the change (paired bootstrap)."""
    high: float
    confidence: float
    """How sure the bootstrap is that the change exceeds the margin."""
    held: bool = True
    """False when this stands in the way of a promotion."""

    @property
    def change(self) -> float:
        return self.after - self.before


class GateReceipt(Receipt):
    """Outcome of judge-model: whether the new version may become champion, and why."""

    compared_with: str
    """`champion v3` or `baseline`."""
    decided_by: ScoreChange | None
    """None when the incumbent could not be compared with."""
    guards: list[ScoreChange]
    margin: float
    confidence: float
    """What the recipe asks for."""
    passed: bool
    reason: str


class Approval(Receipt):
    """What a person, or nobody, said to a version that passed the gate."""

    given: bool
    by: str = ""
    """Empty when nobody was asked."""
    reason: str = ""


class ModelReceipt(Receipt):
    """Outcome of promote-model: the version, and whether it became champion."""

    name: str
    version: int
    model_path: str
    gate: GateReceipt
    promoted: bool
    reason: str


class RunPlan(Receipt):
    """One training run: what it trains, on which prepared data, and where its state lies."""

    run_key: str
    """Digest of recipe and data; the same key continues the same run."""
    run_dir: str
    recipe: dict[str, Any]
    cache: CacheReceipt
    mlflow_run_id: str
    mlflow_url: str
    origin: dict[str, str] = Field(default_factory=dict)
    """Digests of what the training is about: `data`, `code`, `recipe`. A retraining looks whether any is new."""
