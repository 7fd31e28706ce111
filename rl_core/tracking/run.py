"""One MLflow run, addressed by its id.

MLflow's "active run" is thread-local, so everything here goes through `MlflowClient` with an
explicit run id: any thread may log. Metrics, tables and files are sent in the background and in
order, so that a training does not wait for a server that is away (`pending_log.py`); `flush` waits
for them and raises their errors. Parameters, tags, texts and datasets, which are logged when a run
opens or closes, are stored at once. Opening an id that exists continues that run, so a resumed
training has one curve.

Names of parameters, metrics and tags may be any text (`keys.py`).

MLflow refuses to change a parameter and replaces infinities by 1.8e308, which ruins every chart. So
a parameter that differs on resume is kept as the tag `resumed.<name>`, and a value that is not
finite is left out, counted in the metric `num_non_finite` and named in the tag `non_finite`.
"""

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag
from mlflow.exceptions import MlflowException
from requests import RequestException

from rl_core.errors import StorageError
from rl_core.tracking.also.copies import Copies
from rl_core.tracking.database import tracking_client
from rl_core.tracking.keys import original_key, stored_key, stored_text
from rl_core.tracking.pending_log import (
    Outbox,
    file_entry,
    metrics_entry,
    send,
    table_entry,
    tags_entry,
)
from rl_core.tracking.traces import Trace, trace_entry

MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 8000
MAX_DIGEST_LENGTH = 36
MAX_DATASET_NAME = 500
MAX_PER_BATCH = 100
NON_FINITE_METRIC = "num_non_finite"
NON_FINITE_TAG = "non_finite"
OUTAGE_S = 600.0
"""Seconds that the end of a run waits for a server that does not answer."""
STOPPED_TAG = "stopped_by"
"""Tag of a run that a watcher stopped: which one, and why. It goes when the run is continued."""
HASTE_S = 10.0
"""Seconds that the end of a failed or cancelled run waits for a server that does not answer."""


class RunStatus(StrEnum):
    """Final status of a run, in MLflow's terms."""

    FINISHED = "FINISHED"
    """Everything was done."""
    FAILED = "FAILED"
    """An error ended the run; it may be opened again and continued."""
    KILLED = "KILLED"
    """A user cancelled the run, or a watcher stopped it, as its recipe asks."""


@dataclass(frozen=True)
class LoggedDataset:
    """A dataset in MLflow, to which metrics measured on its rows are linked."""

    name: str
    digest: str


def shortened(value: object, limit: int) -> str:
    """Return `value` as text of at most `limit` characters; a cut shows as `...` at the end."""
    text = stored_text(str(value))
    if len(text) <= limit:
        return text
    return text[: limit - 3] + "..."


def ensure_experiment(client: MlflowClient, name: str, artifact_location: Path | None) -> str:
    """Return the id of experiment `name`, created if it is new. Raises: StorageError when it is in
    MLflow's trash."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.create_experiment(
                name,
                artifact_location=None
                if artifact_location is None
                else artifact_location.absolute().as_uri(),
                # Without it the experiment opens in the view for chat traces.
                tags={"mlflow.experimentKind": "custom_model_development"},
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)  # another process was first
    if found is None or found.lifecycle_stage != "active":
        raise StorageError(
            f"MLflow experiment {name!r} is deleted; restore it, or set another name in the recipe"
        )
    return found.experiment_id


class TrackingRun:
    """A run that any thread can write to. Create one with `open`."""

    def __init__(
        self,
        client: MlflowClient,
        tracking_uri: str,
        experiment_id: str,
        run_id: str,
        *,
        resumed: bool,
        outbox: Path | None = None,
    ) -> None:
        self.client = client
        self.tracking_uri = tracking_uri
        self.experiment_id = experiment_id
        self.run_id = run_id
        self.resumed = resumed
        self._lock = threading.Lock()
        self._last_end: int | None = None
        """Time at which the run ended before it was opened again, in ms since 1970."""
        self._copies: Copies | None = None
        self._outbox = Outbox(outbox, lambda entry: send(client, run_id, entry))
        data = client.get_run(run_id).data
        self._num_non_finite = int(data.metrics.get(NON_FINITE_METRIC, 0))
        self._non_finite_seen: list[str] = [
            text for text in data.tags.get(NON_FINITE_TAG, "").split(", ") if text
        ]

    @classmethod
    def open(
        cls,
        tracking_uri: str,
        experiment: str,
        run_name: str,
        *,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        artifact_location: Path | None = None,
        outbox: Path | None = None,
    ) -> "TrackingRun":
        """Continue run `run_id` if it exists, else start a new one.

        Args: tracking_uri: `sqlite:///<absolute>/mlflow.db` or a server. artifact_location: folder
        for the artifacts of a new experiment; a server chooses its own when None. outbox: file of
        the entries that were not sent yet; those of an earlier process are sent first.
        Raises: StorageError when the database cannot be created or used, or the experiment is
        deleted.
        """
        client = tracking_client(tracking_uri)
        known = _existing_run(client, run_id)
        if known is not None:
            run = cls(
                client,
                tracking_uri,
                known.info.experiment_id,
                known.info.run_id,
                resumed=True,
                outbox=outbox,
            )
            run._last_end = known.info.end_time
            client.update_run(run.run_id, status="RUNNING")
            if STOPPED_TAG in known.data.tags:
                client.delete_tag(run.run_id, STOPPED_TAG)
        else:
            experiment_id = ensure_experiment(client, experiment, artifact_location)
            created = client.create_run(experiment_id, run_name=run_name)
            run = cls(
                client,
                tracking_uri,
                experiment_id,
                created.info.run_id,
                resumed=False,
                outbox=outbox,
            )
        run.set_tags(tags or {})
        return run

    def log_params(self, params: Mapping[str, object]) -> None:
        """Log flat parameters. A name that already has another value keeps it; the new value
        becomes a tag."""
        logged = self.client.get_run(self.run_id).data.params
        wanted = {}
        for k, v in params.items():
            wanted[stored_key(k)] = shortened(v, MAX_PARAM_LENGTH)
        fresh = [Param(key, value) for key, value in wanted.items() if key not in logged]
        for start in range(0, len(fresh), MAX_PER_BATCH):
            self.client.log_batch(
                self.run_id, params=fresh[start : start + MAX_PER_BATCH], synchronous=True
            )
        self.set_tags(
            {
                f"resumed.{original_key(k)}": v
                for k, v in wanted.items()
                if k in logged and logged[k] != v
            }
        )

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log one step's metrics in the background. Values that are not finite are counted and
        named instead."""
        finite = {}
        for key, one in metrics.items():
            if math.isfinite(one):
                finite[stored_key(key)] = float(one)
        with self._lock:
            if len(finite) < len(metrics):
                finite[NON_FINITE_METRIC] = self._note_non_finite(metrics, step)
            if finite:
                self._outbox.put(metrics_entry(finite, step))
        if self._copies is not None:
            self._copies.log(metrics, step)

    def copy_to(self, copies: Copies) -> None:
        """Send the metrics that are logged from now on to further trackers, too."""
        self._copies = copies

    def note_tag(self, tag: str, text: str) -> None:
        """Set or replace a tag in the background."""
        self._outbox.put(tags_entry({stored_key(tag): shortened(text, MAX_TAG_LENGTH)}))

    def check(self) -> None:
        """Raise StorageError if MLflow refused something. Does not wait for entries that are still
        to be sent."""
        for error in self._outbox.refusals():
            raise StorageError(
                f"part of run {self.run_id} was not stored in {self.tracking_uri}: {error}"
            ) from error

    def flush(self, patience_s: float = OUTAGE_S) -> None:
        """Wait until everything is stored.

        Raises: StorageError when something was refused, or for `patience_s` nothing could be sent.
        """
        if not self._outbox.wait(patience_s):
            raise StorageError(
                f"{self.tracking_uri} does not answer ({self._outbox.outage}); "
                f"{len(self._outbox)} entries of run {self.run_id} wait to be sent. Run again "
                "when it does: the run goes on, and they are sent first"
            )
        self.check()

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Store a file, or a folder with its contents, under `folder`, in the background."""
        self._outbox.put(file_entry(path, folder))

    def log_text(self, text: str, artifact: str) -> None:
        """Store text as the artifact named `artifact`."""
        self.client.log_text(self.run_id, text, artifact)

    def log_dict(self, value: Mapping[str, object], artifact: str) -> None:
        """Store a mapping as the artifact `artifact`, which ends in `.json` or `.yaml`."""
        self.client.log_dict(self.run_id, dict(value), artifact)

    def log_table(self, rows: Sequence[Mapping[str, object]], artifact: str) -> None:
        """Store rows as a table that the MLflow UI can show, in the background; a repeat replaces
        it."""
        self._outbox.put(table_entry(rows, artifact))

    def log_trace(self, trace: Trace) -> None:
        """Store a trace linked to this run, in the background; a repeat replaces it."""
        self._outbox.put(trace_entry(trace, self.experiment_id))

    def log_dataset(
        self, name: str, source_path: Path | str, sha256: str, *, context: str, num_rows: int
    ) -> LoggedDataset:
        """Record a file as this run's input. MLflow's digest is the first 36 characters; the tag
        holds all 64.

        Args: context: `training`, `evaluation`, or another word for the file's part in the run.
        """
        # What `MetaDataset` of a local file writes; built here because MLflow cannot resolve a
        # local path without a warning (mlflow 3.17 registers its local source twice).
        dataset = Dataset(
            shortened(name, MAX_DATASET_NAME),
            sha256[:MAX_DIGEST_LENGTH],
            "local",
            json.dumps({"uri": stored_text(str(source_path))}),
        )
        details = {"mlflow.data.context": context, "sha256": sha256, "num_rows": str(num_rows)}
        tags = [InputTag(key, value) for key, value in details.items()]
        self.client.log_inputs(self.run_id, [DatasetInput(dataset, tags)])
        self.set_tags({f"dataset.{name}.sha256": sha256})
        return LoggedDataset(dataset.name, dataset.digest)

    def set_tags(self, tags: Mapping[str, object]) -> None:
        """Set or replace tags on the run."""
        items = []
        for k, v in tags.items():
            items.append(RunTag(stored_key(k), shortened(v, MAX_TAG_LENGTH)))
        for start in range(0, len(items), MAX_PER_BATCH):
            self.client.log_batch(
                self.run_id, tags=items[start : start + MAX_PER_BATCH], synchronous=True
            )

    def tag_later(self, tags: Mapping[str, object]) -> None:
        """Set or replace tags in the background, so that a training does not wait for a server."""
        shown = {stored_key(k): shortened(v, MAX_TAG_LENGTH) for k, v in tags.items()}
        self._outbox.put(tags_entry(shown))

    def finish(self, status: RunStatus = RunStatus.FINISHED, *, nothing_done: bool = False) -> None:
        """Store what is pending and end the run. The run ends even when something was refused.

        Args: nothing_done: a run that had ended before it was opened keeps that time.

        Raises: StorageError as `flush` does, and when the end is refused; a run whose server does
        not answer is not marked as ended.
        """
        if self._copies is not None:
            self._copies.finish(succeeded=status is RunStatus.FINISHED)
        if self._outbox.wait(OUTAGE_S if status is RunStatus.FINISHED else HASTE_S):
            ended = self._last_end if nothing_done else None
            try:
                self.client.set_terminated(self.run_id, status=status, end_time=ended)
            except (MlflowException, RequestException) as error:
                reason = str(error).strip().splitlines()[0]
                raise StorageError(
                    f"run {self.run_id} could not be marked as {status.value} in "
                    f"{self.tracking_uri}: {reason:.300}; run again when that works"
                ) from error
        self.flush(0)

    def finish_after(self, error: BaseException, status: RunStatus) -> None:
        """End a run that `error` ended. That error is the one to tell: what cannot be stored here,
        such as on the same full disk, becomes a note of it."""
        try:
            self.finish(status)
        except StorageError as another:
            error.add_note(f"its record in MLflow is not complete: {another}")

    def url(self, base: str) -> str:
        """Return the run's page in the MLflow UI at `base`."""
        return run_page(base, self.experiment_id, self.run_id)

    def _note_non_finite(self, metrics: Mapping[str, float], step: int) -> float:
        """Name the omitted values in the tag.

        Returns: number of omitted values in this run so far.
        """
        found = []
        for key, value in metrics.items():
            if not math.isfinite(value):
                found.append(f"{key}={value} at step {step}")
        self._num_non_finite += len(found)
        self._non_finite_seen += found
        self._outbox.put(
            tags_entry(
                {NON_FINITE_TAG: shortened(", ".join(self._non_finite_seen), MAX_TAG_LENGTH)}
            )
        )
        return float(self._num_non_finite)


def run_page(base: str, experiment_id: str, run_id: str) -> str:
    """Return a run's page in the MLflow UI at `base`."""
    return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"


def _existing_run(client: MlflowClient, run_id: str | None) -> Any:
    """Return the active run with this id, or None."""
    if run_id is None:
        return None
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    if run.info.lifecycle_stage == "active":
        return run
    return None
