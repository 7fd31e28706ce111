"""The task export-iteration: write the weights of a kept iteration of a run as a model folder, for
an evaluation."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from rl_core.runs.versions.iterations import export_iteration as export
from rl_core.runs.versions.iterations import find_iteration
from rl_core.runtime.home import Home
from schemas.sections.policy import ExportKind
from tasks.retrying import worth_retrying


@task(
    name="export-iteration",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
def export_iteration(model: str) -> str:
    """Export the iteration that `RUN@12` refers to as a whole model, once; return its folder.

    Raises: StorageError, ExportMismatch.
    """
    home = Home.default()
    found = find_iteration(model, home)
    assert found is not None, f"{model} is no iteration of a run"
    return str(export(found, home, found.export, kind=ExportKind.MERGED))
