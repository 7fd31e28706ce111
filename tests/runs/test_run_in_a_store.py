"""A real training whose storage is an object store: trained, measured, and gone on with from an
empty home."""

from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger
from s3fs import S3FileSystem

from rl_core.runs.session import TrainingSession, close_sessions
from rl_core.runtime.home import Home
from tasks.open_run import open_run
from tasks.prepare_cache import prepare_cache
from tasks.validate_data import validate_data
from tests.made_runs import recipe_of
from tests.object_store import object_store

pytestmark = pytest.mark.slow


def opened(recipe: dict[str, Any], home: Path, patch: pytest.MonkeyPatch) -> TrainingSession:
    """Open the run in a home."""
    patch.setenv("RL_TRAIN_HOME", str(home))
    report = validate_data.fn(recipe)
    return TrainingSession(open_run.fn(recipe, report, prepare_cache.fn(recipe, report), False))


def test_a_machine_that_never_saw_a_run_goes_on_with_it(
    ray_cluster: None, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    training = {"num_iterations": 2, "steps_per_iteration": 1, "prompts_per_step": 2}
    with object_store() as server, disable_run_logger():
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        # As of a cluster: its nodes are looked at, and workers reach the store.
        S3FileSystem.clear_instance_cache()
        recipe = recipe_of(
            "stored",
            tmp_path,
            tiny_model_dir,
            training=training,
            rollout={"samples_per_prompt": 2, "max_new_tokens": 4},
            placement={"num_devices": 1, "storage": "s3://bucket/runs"},
        )
        first = opened(recipe, tmp_path / "a", monkeypatch)
        one = first.train_iteration(1)
        first.close()
        second = opened(recipe, tmp_path / "b", monkeypatch)
        again = second.train_iteration(1)
        assert again.skipped and again.metrics == one.metrics
        two = second.train_iteration(2)
        assert (two.first_step, two.last_step) == (2, 2)
        model = second.export(2)
        assert model.is_relative_to(tmp_path / "b") and (model / "config.json").is_file()
        final = second.evaluate("final", 2, exported=True)
        assert final.step == 2
        second.close()
        third = opened(recipe, tmp_path / "a", monkeypatch)
        assert third.folder.complete_iterations() == [1, 2]
        assert [one["step"] for one in third.folder.history()] == [1.0, 2.0]
        assert third.train_iteration(2).skipped
        third.close()
    close_sessions()
    assert Home.default().root == tmp_path / "a"
