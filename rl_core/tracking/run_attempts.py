"""Flow runs that worked on an MLflow run, which is opened again by every flow run that continues
it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rl_core.tracking.run import TrackingRun

TAG = "opening."


@dataclass(frozen=True)
class Opening:
    """One flow run that opened a training run."""

    at: str
    """Time of the opening in UTC, ISO 8601."""
    git_revision: str
    flow_run_id: str
    flow_run_url: str
    """The flow run's page in the Prefect UI; empty if no server was up."""
    folder: str
    """Working directory, from which relative paths of the recipe start."""


def record_opening(tracking: TrackingRun, opening: Opening) -> None:
    """Add an opening to the run's tags."""
    number = len(read_openings(tracking.client.get_run(tracking.run_id).data.tags)) + 1
    tracking.set_tags({f"{TAG}{number:04d}": json.dumps(asdict(opening))})


def read_openings(tags: Mapping[str, str]) -> list[Opening]:
    """Return the openings among a run's tags, the first one first."""
    return [Opening(**json.loads(tags[key])) for key in sorted(tags) if key.startswith(TAG)]
