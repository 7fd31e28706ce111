"""From a registered version back to its rows, and the champion alias, in a real MLflow database."""

import pytest

from rl_core.errors import StorageError
from rl_core.tracking.lineage import trace
from rl_core.tracking.registry import champion, move_alias, register_version
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
    dataset = run.log_dataset("held-out", folder / "eval.parquet", EVAL_DIGEST, context="evaluation", num_rows=2)
    metrics = {"eval/accuracy": accuracy}
    return register_version(run, name, folder, metrics, dataset, version_tags(accuracy=accuracy, **changes))


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


def test_the_champion_is_none_until_the_alias_is_set_and_then_moves(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    assert champion(tracking.uri, name) is None
    register(run, name, tmp_path)
    assert champion(tracking.uri, name) is None
    register(run, name, tmp_path, checkpoint="iteration-4", accuracy=0.75)
    for version, accuracy in ((1, 0.5), (2, 0.75)):
        move_alias(tracking.uri, name, "champion", version)
        found = champion(tracking.uri, name)
        assert found is not None
        assert (found.version, found.metrics, found.tags["accuracy"]) == (
            version,
            {"eval/accuracy": accuracy},
            str(accuracy),
        )


def test_a_version_without_a_required_tag_is_refused(open_run, tracking, tmp_path):
    run, name = open_run(), tracking.fresh("model")
    dataset = run.log_dataset("held-out", tmp_path, EVAL_DIGEST, context="evaluation", num_rows=2)
    with pytest.raises(StorageError, match="missing tags run_key, cache_hash"):
        register_version(run, name, tmp_path, {}, dataset, {"eval_digest": "x", "accuracy": 1, "checkpoint": "c"})
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
