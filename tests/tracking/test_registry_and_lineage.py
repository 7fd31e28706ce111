"""From a registered version back to its rows, and the champion alias, in a real MLflow database."""

import getpass
import hashlib
import json
import os
import socket
from pathlib import Path

import mlflow
import pytest

from rl_core.data.store.publish import Built, publish
from rl_core.data.store.weights import weights_digest
from rl_core.errors import StorageError
from rl_core.reporting.lineage_page import LineageFormat, show_lineage
from rl_core.tracking.lineage import trace
from rl_core.tracking.model_versions import (
    champion,
    find_version,
    newest,
    promote,
    promotions,
    register_version,
)
from rl_core.tracking.run_attempts import Opening, record_opening
from schemas.receipts import CacheReceipt, SourceFile

EVAL_DIGEST = "e" * 64


def cache_receipt() -> CacheReceipt:
    return CacheReceipt(
        run_hash="c" * 64,
        path="cache",
        hit=False,
        explanation="first build",
        num_train_rows=8,
        num_eval_rows=2,
        dropped={},
        sources=[SourceFile(path="rows.jsonl", num_bytes=10, mtime_ns=1, sha256="a" * 64)],
        hash_parts={},
    )


def version_tags(checkpoint: str = "iteration-3", **changes: object) -> dict[str, object]:
    tags = {"run_key": "key", "cache_hash": "c" * 64, "eval_digest": EVAL_DIGEST, "accuracy": 0.5}
    return tags | {"checkpoint": checkpoint} | changes


def register(run, name, folder, *, accuracy: float = 0.5, **changes) -> int:
    dataset = run.log_dataset(
        "held-out", folder / "eval.parquet", EVAL_DIGEST, context="evaluation", num_rows=2
    )
    metrics = {"eval/accuracy": accuracy}
    return register_version(
        run, name, folder, metrics, dataset, version_tags(accuracy=accuracy, **changes)
    )


def test_a_version_carries_its_tags_metrics_and_dataset(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    assert register(run, name, tmp_path) == 1
    stored = run.client.get_model_version(name, "1")
    expected = {key: str(value) for key, value in version_tags().items()}
    assert stored.tags == expected | {"run_id": run.run_id, "model_dir": str(tmp_path)}
    assert stored.run_id == run.run_id
    model = run.client.get_logged_model(stored.source.removeprefix("models:/"))
    (metric,) = model.metrics
    assert (metric.key, metric.value, metric.dataset_name) == ("eval/accuracy", 0.5, "held-out")
    assert metric.dataset_digest == EVAL_DIGEST[:36]
    assert model.status == "READY"


def test_registering_the_same_checkpoint_again_gives_the_same_version(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    assert [register(run, name, tmp_path) for _ in range(2)] == [1, 1]
    assert register(run, name, tmp_path, checkpoint="iteration-4") == 2
    assert register(open_run(), name, tmp_path) == 3


@pytest.mark.parametrize("wish", [None, "sqlite:///of-the-user.db"])
def test_registering_leaves_the_environment_as_it_was(
    open_run, tracking, tmp_path, monkeypatch, wish: str | None
):
    run = open_run()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if wish is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", wish)
    register(run, tracking.fresh("model"), tmp_path)
    assert os.environ.get("MLFLOW_TRACKING_URI") == wish
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///another.db")
    assert mlflow.get_tracking_uri() == "sqlite:///another.db", "the environment still decides"


def test_the_champion_is_none_until_the_alias_is_set_and_then_moves(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    assert champion(tracking.uri, name) is None
    register(run, name, tmp_path)
    assert champion(tracking.uri, name) is None
    register(run, name, tmp_path, checkpoint="iteration-4", accuracy=0.75)
    for version, accuracy in ((1, 0.5), (2, 0.75)):
        promote(tracking.uri, name, version, "better", by="a test")
        found = champion(tracking.uri, name)
        assert found is not None
        assert (found.version, found.metrics, found.tags["accuracy"]) == (
            version,
            {"eval/accuracy": accuracy},
            str(accuracy),
        )


def test_a_promotion_says_who_when_why_and_over_what(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    register(run, name, tmp_path)
    register(run, name, tmp_path, checkpoint="iteration-4")
    promote(tracking.uri, name, 1, "the first", by="gate")
    promote(tracking.uri, name, 2, "better")
    promote(tracking.uri, name, 1, "v2 broke the demo", by="ada")
    moves = promotions(tracking.uri, name)
    assert [(move.version, move.over, move.reason) for move in moves] == [
        (1, None, "the first"), (2, 1, "better"), (1, 2, "v2 broke the demo"),
    ]  # fmt: skip
    assert (moves[0].by, moves[2].by) == ("gate", "ada")
    assert moves[1].by == f"{getpass.getuser()}@{socket.gethostname()}"
    tags = find_version(tracking.uri, f"models:/{name}@champion").tags
    assert (tags["promoted_by"], tags["promoted_reason"], tags["promoted_at"]) == (
        "ada", "v2 broke the demo", moves[2].at,
    )  # fmt: skip
    with pytest.raises(
        StorageError, match=rf"model '{name}' has no version 3 .*; it has version 1, 2"
    ):
        promote(tracking.uri, name, 3, "a typo")
    assert promotions(tracking.uri, name) == moves


def test_a_version_is_found_by_alias_number_or_name(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    assert newest(tracking.uri, name) is None
    register(run, name, tmp_path)
    register(run, name, tmp_path, checkpoint="iteration-4")
    promote(tracking.uri, name, 1, "the first")
    found = [find_version(tracking.uri, *words).version for words in (
        (f"models:/{name}@champion",), (f"models:/{name}/2",), (name, 2),
    )]  # fmt: skip
    assert found == [1, 2, 2]
    last = newest(tracking.uri, name)
    assert last is not None and last.version == 2
    for words, said in (
        ((f"models:/{name}@best",), "has no alias best"),
        ((name,), "expected models:/NAME@champion"),
        (("models:/a/b/c",), "expected models:/NAME@champion"),
        (("nobody", 1), "registered are .*" + name),
    ):
        with pytest.raises(StorageError, match=said):
            find_version(tracking.uri, *words)


def test_a_version_without_a_required_tag_is_refused(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    dataset = run.log_dataset("held-out", tmp_path, EVAL_DIGEST, context="evaluation", num_rows=2)
    with pytest.raises(StorageError, match="missing tags run_key, cache_hash"):
        register_version(
            run, name, tmp_path, {}, dataset, {"eval_digest": "x", "accuracy": 1, "checkpoint": "c"}
        )
    with pytest.raises(StorageError, match="is not a folder"):
        register_version(run, name, tmp_path / "absent", {}, dataset, version_tags())


def test_a_version_is_traced_to_its_source_rows(open_run, tracking, tmp_path):
    run, name = open_run(tags={"git_revision": "f00d"}), tracking.fresh("model")
    run.log_text("algorithm: {name: grpo}\n", "recipe.yaml")
    run.log_text(cache_receipt().model_dump_json(), "receipts/cache.json")
    version = register(run, name, tmp_path)
    lineage = trace(tracking.uri, name, version)
    assert (lineage.run_id, lineage.run_name, lineage.run_key) == (run.run_id, "a run", "key")
    assert (lineage.checkpoint, lineage.git_revision) == ("iteration-3", "f00d")
    assert lineage.recipe == "algorithm: {name: grpo}\n"
    assert lineage.cache == cache_receipt()
    assert lineage.metrics == {"eval/accuracy": 0.5}
    assert [(file.path, file.sha256) for file in lineage.sources] == [("rows.jsonl", "a" * 64)]
    assert "rows.jsonl  sha256 " + "a" * 64 in str(lineage)


def one_file(work: Path) -> Built:
    (work / "train.parquet").write_bytes(b"rows")
    return Built({})


def opening(number: int) -> Opening:
    return Opening(
        f"2026-01-0{number}", f"rev{number}", f"flow-{number}", f"http://ui/{number}", "/"
    )


def test_lineage_names_resumes_champions_links_and_what_changed(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    source, model_dir = tmp_path / "rows.jsonl", tmp_path / "model"
    source.write_text("{}")
    model_dir.mkdir()
    (model_dir / "model.safetensors").write_bytes(b"weights")
    publish(tmp_path / "cache", "c" * 64, one_file)
    digest = hashlib.sha256(b"{}").hexdigest()
    receipt = cache_receipt().model_copy(update={
        "path": str(tmp_path / "cache"),
        "sources": [SourceFile(path=str(source), num_bytes=2, mtime_ns=1, sha256=digest)],
    })  # fmt: skip
    run.log_text("x: 1\n", "recipe.yaml")
    run.log_text(receipt.model_dump_json(), "receipts/cache.json")
    for number in (1, 2):
        record_opening(run, opening(number))
    version = register(run, name, model_dir, weights_digest=weights_digest(model_dir))
    promote(tracking.uri, name, version, "the first", by="gate")

    lineage = trace(tracking.uri, f"models:/{name}@champion", ui="http://mlflow")
    assert lineage.openings == [opening(1), opening(2)]
    assert lineage.mlflow_url.endswith(f"/runs/{run.run_id}")
    assert [check.condition for check in lineage.checks()] == ["same", "same", "same"]
    text, page = (
        show_lineage(lineage, form, list(lineage.checks()))
        for form in (LineageFormat.TEXT, LineageFormat.HTML)
    )
    for shown in (text, page):
        assert all(
            word in shown for word in (digest, "http://ui/2", "resumed", "gate", lineage.mlflow_url)
        )
    told = json.loads(show_lineage(lineage, LineageFormat.JSON))
    assert (told["openings"][1]["flow_run_id"], told["cache"]["sources"][0]["sha256"]) == (
        "flow-2",
        digest,
    )

    source.write_text("{ }")
    (tmp_path / "cache" / "train.parquet").write_bytes(b"other")
    (model_dir / "model.safetensors").unlink()
    found = {check.what: (check.condition, check.path) for check in lineage.checks()}
    assert found == {
        "source": ("changed", str(source)),
        "cache": ("changed", str(tmp_path / "cache")),
        "weights": ("changed", str(model_dir)),
    }
    source.unlink()
    assert next(lineage.checks()).condition == "missing"


def test_a_broken_link_is_named(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    with pytest.raises(StorageError, match="version 1"):
        trace(tracking.uri, name, 1)
    version = register(run, name, tmp_path)
    with pytest.raises(StorageError, match=r"no artifact receipts/cache\.json"):
        trace(tracking.uri, name, version)
    run.log_text(cache_receipt().model_dump_json(), "receipts/cache.json")
    with pytest.raises(StorageError, match=r"no artifact recipe\.yaml"):
        trace(tracking.uri, name, version)
    run.log_text("x: 1\n", "recipe.yaml")
    other = register(run, name, tmp_path, checkpoint="other", cache_hash="d" * 64)
    with pytest.raises(StorageError, match="registered from cache dddd"):
        trace(tracking.uri, name, other)
