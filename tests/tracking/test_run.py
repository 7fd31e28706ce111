"""TrackingRun against a real MLflow database; everything is read back through MLflow's own API."""

import json
import math
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.data import get_source

from rl_core.errors import DataError, StorageError
from rl_core.tracking.run import RunStatus, TrackingRun
from rl_core.tracking.traces import SpanKind, Trace, TraceSpan


def artifact_text(run, artifact: str, folder: Path) -> str:
    return Path(run.client.download_artifacts(run.run_id, artifact, str(folder))).read_text(
        encoding="utf-8"
    )


def test_metrics_of_every_step_are_stored_after_flush(open_run):
    run = open_run()
    for step in range(1, 4):
        run.log_metrics({"reward/mean": 0.1 * step, "loss": -step}, step)
    run.flush()
    history = run.client.get_metric_history(run.run_id, "reward/mean")
    assert {point.step: point.value for point in history} == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})


def test_metrics_from_many_threads_land_in_one_run(open_run):
    run = open_run()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda step: run.log_metrics({"m": step}, step), range(20)))
    run.flush()
    assert sorted(point.step for point in run.client.get_metric_history(run.run_id, "m")) == list(
        range(20)
    )


def test_non_finite_metrics_are_counted_and_named(open_run):
    run = open_run()
    run.log_metrics({"loss": math.nan, "kl": math.inf, "reward": 1.0}, 1)
    run.log_metrics({"loss": math.nan}, 2)
    run.flush()
    data = run.client.get_run(run.run_id).data
    assert data.metrics == {"reward": 1.0, "num_non_finite": 3.0}
    for text in ("loss=nan at step 1", "kl=inf at step 1", "loss=nan at step 2"):
        assert text in data.tags["non_finite"]
    again = open_run(run_id=run.run_id)
    again.log_metrics({"loss": math.nan}, 3)
    again.flush()
    assert run.client.get_run(run.run_id).data.metrics["num_non_finite"] == 4


def test_what_cannot_be_stored_raises_at_flush(open_run, tmp_path):
    run = open_run()
    run.log_artifact(tmp_path / "not there")
    with pytest.raises(StorageError, match="was not stored"):
        run.flush()


def test_opening_a_known_id_continues_that_run(open_run):
    first = open_run(tags={"run_key": "abc"})
    first.log_metrics({"reward": 0.5}, 1)
    first.finish(RunStatus.FAILED)
    assert first.client.get_run(first.run_id).info.status == "FAILED"

    second = open_run(run_id=first.run_id)
    assert (second.run_id, second.resumed, first.resumed) == (first.run_id, True, False)
    assert second.client.get_run(first.run_id).info.status == "RUNNING"
    second.log_metrics({"reward": 0.7}, 2)
    second.finish()
    stored = second.client.get_run(first.run_id)
    assert (stored.info.status, stored.data.tags["run_key"]) == ("FINISHED", "abc")
    assert [point.step for point in second.client.get_metric_history(first.run_id, "reward")] == [
        1,
        2,
    ]


def test_opening_an_unknown_id_starts_a_new_run(open_run):
    run = open_run(run_id="0" * 32)
    assert not run.resumed and run.run_id != "0" * 32


def test_params_can_be_logged_again_and_a_change_stays_visible(open_run):
    run = open_run()
    run.log_params({"lr": 1e-4, "empty": None, "long": "x" * 7000})
    run.log_params({"lr": 1e-4, "empty": None, "long": "x" * 7000})
    run.log_params({"lr": 2e-4})
    data = run.client.get_run(run.run_id).data
    assert (data.params["lr"], data.params["empty"], len(data.params["long"])) == (
        "0.0001",
        "None",
        6000,
    )
    assert data.tags["resumed.lr"] == "0.0002"
    assert "resumed.long" not in data.tags


def test_more_params_than_one_batch_takes_are_all_stored(open_run):
    run = open_run()
    run.log_params({f"p{i}": i for i in range(250)})
    assert len(run.client.get_run(run.run_id).data.params) == 250


def test_artifacts_texts_and_dicts_come_back(open_run, tmp_path):
    run = open_run()
    (tmp_path / "back").mkdir()
    (tmp_path / "file.txt").write_text("from a file")
    run.log_artifact(tmp_path / "file.txt", "folder")
    run.log_text("plain ü", "notes.md")
    run.log_dict({"a": [1, 2]}, "receipts/a.json")
    run.flush()
    assert artifact_text(run, "folder/file.txt", tmp_path / "back") == "from a file"
    assert artifact_text(run, "notes.md", tmp_path) == "plain ü"
    assert json.loads(artifact_text(run, "receipts/a.json", tmp_path)) == {"a": [1, 2]}


def test_a_table_logged_twice_is_replaced_not_doubled(open_run, tmp_path):
    run = open_run()
    for answer in ("7", "8"):
        run.log_table(
            [{"prompt": "3+4", "answer": answer}, {"prompt": "1+1", "reward": 1.0}], "samples.json"
        )
    run.flush()
    assert json.loads(artifact_text(run, "samples.json", tmp_path)) == {
        "columns": ["prompt", "answer", "reward"],
        "data": [["3+4", "8", None], ["1+1", None, 1.0]],
    }
    marks = run.client.get_run(run.run_id).data.tags["mlflow.loggedArtifacts"]
    assert json.loads(marks) == [{"path": "samples.json", "type": "table"}]


def test_a_trace_sent_twice_is_one_and_belongs_to_its_run(open_run):
    run = open_run()
    whole = TraceSpan("step 1", SpanKind.CONVERSATION, 100.0, 103.0, ["asked"], {"reward": 1.0})
    reply = TraceSpan("1 assistant", SpanKind.REPLY, 100.0, 102.0, None, {"content": "<b>ü</b>"})
    wrong = TraceSpan("2 tool", SpanKind.TOOL, 102.0, 103.0, error="no answer")
    for response in ("before", "after"):
        trace = Trace("step 1 a", (whole, reply, wrong), "asked", response, {"step": "1"})
        run.log_trace(trace)
    run.flush()
    (found,) = run.client.search_traces([run.experiment_id])
    assert found.info.trace_metadata["mlflow.sourceRun"] == run.run_id
    assert (found.info.request_time, found.info.execution_duration) == (100_000, 3000)
    assert found.info.tags["step"] == "1"
    spans = {span.name: span for span in found.data.spans}
    assert len(spans) == len(found.data.spans) == 3
    assert spans["1 assistant"].outputs == {"content": "<b>ü</b>"}
    assert spans["1 assistant"].parent_id == spans["step 1"].span_id
    assert spans["2 tool"].status.status_code == "ERROR"


def test_a_dataset_input_keeps_its_full_digest(open_run, tmp_path):
    run = open_run()
    sha256 = "0123456789abcdef" * 4
    source = tmp_path / "train.jsonl"
    source.write_text("{}\n")
    for _ in range(2):
        logged = run.log_dataset("train", source, sha256, context="training", num_rows=1)
    stored = run.client.get_run(run.run_id)
    (found,) = stored.inputs.dataset_inputs
    assert (
        (found.dataset.name, found.dataset.digest)
        == ("train", sha256[:36])
        == (logged.name, logged.digest)
    )
    assert get_source(found.dataset).load() == str(source)
    assert {tag.key: tag.value for tag in found.tags} == {
        "mlflow.data.context": "training",
        "sha256": sha256,
        "num_rows": "1",
    }
    assert stored.data.tags["dataset.train.sha256"] == sha256


def test_a_new_experiment_is_marked_for_the_training_view(open_run, tracking):
    run = open_run()
    experiment = run.client.get_experiment(run.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert experiment.artifact_location.endswith(str(tracking.artifacts))


def test_a_deleted_experiment_is_named_with_what_to_do(open_run):
    run = open_run()
    run.client.delete_experiment(run.experiment_id)
    with pytest.raises(StorageError, match="is deleted; restore it"):
        open_run()


def test_a_database_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the folder"):
        TrackingRun.open(f"sqlite:///{tmp_path}/file/mlflow.db", "e", "r")


def test_url_is_the_page_of_the_run(open_run):
    run = open_run()
    page = f"#/experiments/{run.experiment_id}/runs/{run.run_id}"
    assert run.url("http://127.0.0.1:5000/") == f"http://127.0.0.1:5000/{page}"


def test_finishing_ends_the_run_even_when_something_was_lost(open_run, tmp_path):
    run = open_run()
    run.log_artifact(tmp_path / "not there")
    with pytest.raises(StorageError):
        run.finish()
    assert run.client.get_run(run.run_id).info.status == "FINISHED"


def test_the_error_that_ended_a_run_is_told_though_its_end_cannot_be_stored(
    tmp_path: Path,
) -> None:
    run = TrackingRun.open(f"sqlite:///{tmp_path}/mlflow.db", "e", "r")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("DROP TABLE runs")
        database.commit()
    with pytest.raises(StorageError, match=r"could not be marked as FINISHED in sqlite.*run again"):
        run.finish()
    error = DataError("the first")
    run.finish_after(error, RunStatus.FAILED)
    assert "could not be marked as FAILED" in error.__notes__[0]
