"""A real MLflow database for these tests: made once, because its first tables take seconds."""

from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest


@dataclass
class Tracking:
    """Where MLflow keeps its records in these tests, and fresh names to keep them apart."""

    uri: str
    artifacts: Path
    _numbers: count

    def fresh(self, prefix: str) -> str:
        return f"{prefix}-{next(self._numbers)}"


@pytest.fixture(scope="session")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Tracking:
    folder = tmp_path_factory.mktemp("mlflow")
    return Tracking(f"sqlite:///{folder}/store/mlflow.db", folder / "artifacts", count())


@pytest.fixture
def open_run(tracking: Tracking):
    """Opens runs in one experiment of the test's own."""
    from rl_core.tracking.run import TrackingRun

    experiment = tracking.fresh("experiment")

    def open_one(run_id: str | None = None, **options):
        return TrackingRun.open(
            tracking.uri,
            experiment,
            "a run",
            run_id=run_id,
            artifact_location=tracking.artifacts,
            **options,
        )

    return open_one
