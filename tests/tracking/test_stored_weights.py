"""Weights of a version reach a machine that lacks them, by way of MLflow's artifact store."""

import shutil
from pathlib import Path

import pytest

from rl_core.data.store.weights import weights_digest
from rl_core.errors import StorageError
from rl_core.tracking.model_versions import find_version
from rl_core.tracking.run import TrackingRun
from rl_core.tracking.stored_weights import is_elsewhere, store_weights, weights_here
from tests.object_store import object_store
from tests.tracking.test_registry_and_lineage import register


def test_weights_in_a_store_are_fetched_once_and_compared(
    tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, models = tmp_path / "model", tmp_path / "models"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    name, experiment = tracking.fresh("model"), tracking.fresh("experiment")
    with object_store() as server:
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", server.url)
        first = TrackingRun.open(tracking.uri, tracking.fresh("other"), "r")
        first.client.create_experiment(experiment, artifact_location="s3://bucket/mlflow")
        run = TrackingRun.open(tracking.uri, experiment, "a run")
        register(run, name, folder, weights_digest=weights_digest(folder))
        assert is_elsewhere(run)
        store_weights(run, folder)
        found = find_version(tracking.uri, name, 1)
        assert weights_here(found, tracking.uri, models) == str(folder)
        (folder / "model.safetensors").write_bytes(b"others")
        fetched = Path(weights_here(found, tracking.uri, models))
        assert (fetched / "model.safetensors").read_bytes() == b"weights", "not what lies there"
        shutil.rmtree(models)
        shutil.rmtree(folder)
        here = Path(weights_here(found, tracking.uri, models))
        assert (here / "model.safetensors").read_bytes() == b"weights"
        label = f"{name}-v1-{found.tags['weights_digest'][:12]}"
        assert [path.name for path in here.parent.iterdir()] == [label]
        shutil.rmtree(models)
        run.client.log_text(run.run_id, "other", "weights/model.safetensors")
        with pytest.raises(StorageError, match="the stored weights have digest"):
            weights_here(found, tracking.uri, models)
    # Fetched weights need no store.
    here.mkdir(parents=True)
    assert weights_here(found, tracking.uri, models) == str(here)


def test_weights_of_this_machine_are_not_copied(open_run, tracking, tmp_path: Path):
    run, name = open_run(), tracking.fresh("model")
    register(run, name, tmp_path)
    assert not is_elsewhere(run)
    store_weights(run, tmp_path)
    assert run.client.list_artifacts(run.run_id) == []
    gone = find_version(tracking.uri, name, 1)
    gone.tags["model_dir"] = str(tmp_path / "gone")
    assert weights_here(gone, tracking.uri, tmp_path / "models") == str(tmp_path / "gone")


def test_weights_that_were_changed_where_they_lie_are_refused(open_run, tracking, tmp_path: Path):
    run, name = open_run(), tracking.fresh("model")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    register(run, name, tmp_path, weights_digest=weights_digest(tmp_path))
    found = find_version(tracking.uri, name, 1)
    assert weights_here(found, tracking.uri, tmp_path / "models") == str(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"others")
    with pytest.raises(StorageError, match=rf"{name} v1: the weights at .* were changed"):
        weights_here(found, tracking.uri, tmp_path / "models")
