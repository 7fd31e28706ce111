"""Entries on their way to MLflow: outages, kills, and what is refused."""

import json
import threading
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from rl_core.errors import StorageError
from rl_core.runtime import background_queue
from rl_core.tracking.pending_log import Entry, Outbox, metrics_entry, tags_entry

PATIENCE_S = 30


class Server:
    """Takes entries while it is up; what it is handed while it is down has to come again."""

    def __init__(self) -> None:
        self.up, self.asked = True, threading.Event()
        self.stored: list[Entry] = []

    def take(self, entry: Entry) -> None:
        if not self.up:
            self.asked.set()
            raise MlflowException("API request failed: connection refused")
        if entry.get("metrics", {}).get("refused"):
            raise MlflowException("no such metric", INVALID_PARAMETER_VALUE)
        self.stored.append(entry)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_queue, "RETRY_S", 0.01)


def entries(count: int) -> list[Entry]:
    return [metrics_entry({"loss": 0.1 * step, "text\u2028": 1.0}, step) for step in range(count)]


def test_an_outage_delays_entries_and_loses_none(tmp_path: Path):
    server, said = Server(), entries(50)
    outbox = Outbox(tmp_path / "outbox", server.take)
    for step, entry in enumerate(said):
        server.up = not 10 <= step < 40
        outbox.put(entry)
    server.up = False
    assert server.asked.wait(PATIENCE_S)
    server.up = True
    assert outbox.wait(PATIENCE_S)
    assert server.stored == said
    assert outbox.outage is None and outbox.refusals() == []
    assert (tmp_path / "outbox").read_text() == ""


def test_whoever_says_something_does_not_wait_for_the_server(tmp_path: Path):
    server = Server()
    server.up = False
    outbox = Outbox(tmp_path / "outbox", server.take)
    outbox.put(entries(1)[0])
    assert server.asked.wait(PATIENCE_S)
    assert not outbox.wait(0.05)
    assert len(outbox) == 1
    assert "connection refused" in str(outbox.outage)
    server.up = True
    assert outbox.wait(PATIENCE_S)


def test_what_a_killed_process_left_is_sent_first(tmp_path: Path):
    path, said = tmp_path / "outbox", entries(4)
    lines = [json.dumps(entry) + "\n" for entry in said[:3]]
    path.write_text("".join(lines) + '{"kind": "metrics", "met')
    server = Server()
    outbox = Outbox(path, server.take)
    outbox.put(said[3])
    assert outbox.wait(PATIENCE_S)
    assert server.stored == said
    assert path.read_text() == ""


def test_entries_of_an_outage_lie_in_the_file(tmp_path: Path):
    server, said = Server(), entries(3)
    server.up = False
    outbox = Outbox(tmp_path / "outbox", server.take)
    for entry in said:
        outbox.put(entry)
    second = Server()
    again = Outbox(tmp_path / "outbox", second.take)
    assert again.wait(PATIENCE_S)
    assert second.stored == said
    server.up = True
    assert outbox.wait(PATIENCE_S)


def test_a_refused_entry_is_told_and_the_next_have_their_turn(tmp_path: Path):
    server = Server()
    outbox = Outbox(None, server.take)
    outbox.put(metrics_entry({"refused": 1.0}, 1))
    outbox.put(metrics_entry({"loss": 1.0}, 1))
    assert outbox.wait(PATIENCE_S)
    assert [str(error) for error in outbox.refusals()] == ["no such metric"]
    assert [entry["metrics"] for entry in server.stored] == [{"loss": 1.0}]


def test_metrics_that_are_sent_twice_are_stored_once(open_run, tmp_path: Path):
    run = open_run(outbox=tmp_path / "outbox")
    entry = metrics_entry({"loss": 0.5}, 3)
    (tmp_path / "outbox").write_text(2 * (json.dumps(entry) + "\n"))
    again = open_run(run_id=run.run_id, outbox=tmp_path / "outbox")
    again.flush()
    (point,) = again.client.get_metric_history(run.run_id, "loss")
    assert (point.step, point.value, point.timestamp) == (3, 0.5, entry["timestamp_ms"])


def test_a_server_that_stays_away_is_named_at_the_end(
    open_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = open_run(outbox=tmp_path / "outbox")

    def refuse(*_: object, **__: object) -> None:
        raise MlflowException("connection refused")

    with monkeypatch.context() as patched:
        patched.setattr(run.client, "log_batch", refuse)
        run.log_metrics({"loss": 1.0}, 1)
        with pytest.raises(
            StorageError, match=r"does not answer .*; 1 entries of run \w+ wait to be sent"
        ):
            run.flush(0.05)
    run.finish()
    assert run.client.get_run(run.run_id).data.metrics == {"loss": 1.0}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, of Linux")
def test_a_full_disk_is_said_with_the_file() -> None:
    outbox = Outbox(Path("/dev/full"), lambda _: None)
    with pytest.raises(StorageError, match="cannot write /dev/full: the disk is full"):
        outbox.put(tags_entry({"a": "b"}))
    assert len(outbox) == 0
