"""Entries for MLflow, kept in a file until MLflow has stored them.

An entry is written to the file before it is sent, so neither an outage of the server nor the end of
this process loses a metric; a power failure may lose those of the last seconds. The file is emptied
whenever all of it has been sent. After a kill some of it may be sent again, which changes nothing:
MLflow stores an equal metric once, and replaces the rest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, RunTag
from mlflow.exceptions import MlflowException
from requests import RequestException

from rl_core.data.store.atomic import storage_error
from rl_core.runtime.background_queue import Deliveries
from rl_core.tracking.traces import send_trace

TABLES_TAG = "mlflow.loggedArtifacts"
SERVER_ERROR = 500
Entry = dict[str, Any]
"""One entry to send, as JSON."""


class Outbox(Deliveries[Entry]):
    """Queue of entries, in memory and in a file."""

    def __init__(self, path: Path | None, deliver: Callable[[Entry], object]) -> None:
        """Open the queue.

        Args: path: file whose remaining entries are sent first; None keeps entries in memory alone.
        deliver: sends one entry.
        """
        super().__init__(deliver, is_outage)
        self._path = path
        with self._changed:
            for entry in _unsent(path):
                super().put(entry)

    def put(self, item: Entry) -> None:
        """Write an entry to the file, and send it after those before it. Raises: StorageError when
        it cannot be written."""
        with self._changed:
            if self._path is not None:
                try:
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(item, ensure_ascii=False) + "\n")
                except OSError as error:
                    raise storage_error(self._path, error) from error
            super().put(item)

    def _emptied(self) -> None:
        # What stays in the file is sent again, which changes nothing; an error would end the
        # thread that sends.
        with suppress(OSError):
            if self._path is not None and self._path.is_file():
                self._path.write_text("")


def metrics_entry(metrics: Mapping[str, float], step: int) -> Entry:
    """Return an entry with the finite metrics of a step, at the current time."""
    return {
        "kind": "metrics",
        "metrics": dict(metrics),
        "step": step,
        "timestamp_ms": int(time.time() * 1000),
    }


def tags_entry(tags: Mapping[str, str]) -> Entry:
    """Return an entry with tags to set or replace."""
    return {"kind": "tags", "tags": dict(tags)}


def file_entry(path: Path, folder: str | None) -> Entry:
    """Return an entry for a file, or a folder with its contents, read when it is sent."""
    return {"kind": "file", "path": str(path.absolute()), "folder": folder}


def table_entry(rows: Sequence[Mapping[str, object]], artifact: str) -> Entry:
    """Return an entry with rows that the MLflow UI shows as a table; values that JSON cannot
    represent become text."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    data = []
    for row in rows:
        data.append([row.get(column) for column in columns])
    table = {"columns": columns, "data": data}
    return {
        "kind": "table",
        "table": json.dumps(table, ensure_ascii=False, default=str),
        "artifact": artifact,
    }


def send(client: MlflowClient, run_id: str, entry: Entry) -> None:
    """Store an entry in a run. Raises: the exceptions of MLflow."""
    match entry:
        case {"kind": "metrics", "metrics": metrics, "step": step, "timestamp_ms": at}:
            client.log_batch(
                run_id, [Metric(key, value, at, step) for key, value in metrics.items()]
            )
        case {"kind": "tags", "tags": tags}:
            client.log_batch(run_id, tags=[RunTag(key, value) for key, value in tags.items()])
        case {"kind": "file", "path": path, "folder": folder}:
            log = client.log_artifacts if Path(path).is_dir() else client.log_artifact
            log(run_id, path, artifact_path=folder)
        case {"kind": "table", "table": table, "artifact": artifact}:
            client.log_text(run_id, table, artifact)
            _mark_as_table(client, run_id, artifact)
        case {"kind": "trace", "trace": trace, "experiment_id": experiment_id}:
            send_trace(client.tracking_uri, run_id, experiment_id, trace)
        case _:
            raise ValueError(f"no such entry in an outbox: {entry}")


def is_outage(error: Exception) -> bool:
    """Return True if MLflow did not answer; False if it answered and refused the request."""
    if isinstance(error, MlflowException):
        return error.get_http_status_code() >= SERVER_ERROR
    return isinstance(error, RequestException)


def _mark_as_table(client: MlflowClient, run_id: str, artifact: str) -> None:
    """Set the tag that makes the UI show an artifact as a table. `MlflowClient.log_table` does so
    too, but appends to the rows."""
    tables = json.loads(client.get_run(run_id).data.tags.get(TABLES_TAG, "[]"))
    if (entry := {"path": artifact, "type": "table"}) not in tables:
        client.set_tag(run_id, TABLES_TAG, json.dumps([*tables, entry]))


def _unsent(path: Path | None) -> list[Entry]:
    """Return the remaining entries of a file. A last line that was cut short by a kill is dropped
    and removed."""
    if path is None or not path.is_file():
        return []
    whole, _, cut = path.read_text(encoding="utf-8").rpartition("\n")
    if cut:
        path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    return [json.loads(line) for line in whole.split("\n") if line]
