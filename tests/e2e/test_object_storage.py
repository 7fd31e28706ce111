"""A run kept in an object store: killed on one machine, it goes on by the same command on another
that shares nothing with the first, ends as an undisturbed one does, and a third fetches its
version."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rl_core.services.catalogue import answers
from rl_core.services.ports import free_port
from tests.command import answer
from tests.e2e.conftest import Run
from tests.e2e.outcomes import (
    assert_identical,
    held_out_scores,
    is_trained,
    run_folder,
    trained_weights,
    weights_in,
)
from tests.e2e.prefect_api import wait_until
from tests.object_store import BUCKET, ObjectStore, object_store
from tests.processes import still_running

pytestmark = pytest.mark.slow
RECIPE = Path("smoke/text")
LEARNS = (
    # Partial credit gives a random model rewards that differ.
    "environments.reasoning_gym={answer: text, partial_credit: true}",
    "fsdp.param_dtype=float32",
)
STORED = f"placement.storage=s3://{BUCKET}/runs"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", running.url)
        yield running


@pytest.fixture
def mlflow_server(store: ObjectStore, tmp_path: Path) -> Iterator[str]:
    """Address of a server that all machines reach; artifacts are in the store."""
    host, port = "127.0.0.1", free_port("127.0.0.1")
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    command += ["--no-serve-artifacts", "--default-artifact-root", f"s3://{BUCKET}/mlflow"]
    url = f"http://{host}:{port}"
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until(lambda: answers(f"{url}/health"), "the MLflow server")
            yield url
        finally:
            below = psutil.Process(process.pid).children(recursive=True)
            for one in (process, *below):
                one.kill()
            process.wait(15)
            psutil.wait_procs(below, timeout=15)


@pytest.mark.long
def test_a_run_killed_on_one_machine_goes_on_on_another_and_a_third_fetches_its_version(
    start: Callable[..., Run],
    mlflow_server: str,
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SMOKE_MODEL", str(tiny_model_dir))
    undisturbed, first, second, third = (tmp_path / name for name in ("whole", "a", "b", "c"))
    whole = start(RECIPE, undisturbed, *LEARNS)
    assert whole.finish() == 0, whole.output
    assert is_trained(tiny_model_dir, run_folder(undisturbed) / "model")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    killed = start(RECIPE, first, *LEARNS, STORED)
    killed.wait_for("step   3/4")
    assert not still_running(killed.kill())
    receipts = run_folder(first) / "receipts"
    assert (receipts / "iteration-0001.json").is_file()
    assert not (receipts / "iteration-0002.json").exists(), "killed too late to show anything"

    again = start(RECIPE, second, *LEARNS, STORED)
    assert again.finish() == 0, again.output
    assert "train-iteration 1: was complete already, skipped" in again.output
    assert not list(second.glob("runs/*/checkpoints/iteration-*")), "checkpoints are in the store"
    assert_identical(trained_weights(second), trained_weights(undisturbed))
    assert held_out_scores(second) == held_out_scores(undisturbed)

    # Its path on the second machine means nothing on the third.
    (run_folder(second) / "model").rename(tmp_path / "gone")
    answer(third, "export", "models:/rl-train-smoke-text/1", "--to", str(tmp_path / "exported"))
    assert_identical(
        weights_in(tmp_path / "exported"), weights_in(run_folder(undisturbed) / "model")
    )
