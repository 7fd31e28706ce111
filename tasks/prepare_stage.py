"""The task prepare-stage: turn the raw files of one stage into a published cache; the same code as
`rl-train prep`."""

from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from rl_core.data.stages.base import Context
from rl_core.data.stages.run import load_stage
from rl_core.data.stages.run import prepare_stage as prepare
from rl_core.distributed.cluster import configured_address
from rl_core.distributed.ray_data.jobs import cluster_runner
from rl_core.runtime.home import Home
from rl_core.tracking.artifacts import PreparedArtifact, register_prepared
from schemas.receipts import PrepReceipt
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.flow_links import page_tags
from tasks.retrying import worth_retrying


# The run hash over file contents decides about reuse; Prefect's own cache sees only the settings'
# text.
@task(
    name="prepare-stage",
    task_run_name="prepare-stage {stage}",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
def prepare_stage(
    stage: str,
    overrides: Sequence[str] = (),
    input_dir: str | None = None,
    output_dir: str | None = None,
    force: bool = False,
) -> PrepReceipt:
    """Prepare one stage and register the result. Raises: RecipeError, DataError, StorageError."""
    home = Home.default()
    loaded = load_stage(stage, overrides, input_dir=input_dir, output_dir=output_dir)
    address = configured_address(loaded.config.ray_address)
    bar = artifacts.Progress(f"prepare-{loaded.config.stage}", f"Preparing {loaded.config.stage}")
    context = Context(progress=_Bar(bar))
    if address:
        context = Context(progress=context.progress, run=cluster_runner(address))
    receipt = prepare(loaded, context=context, force=force, home=home)
    registered = register_prepared(
        home.mlflow_uri,
        receipt,
        tags=page_tags(),
        artifact_location=home.artifact_location,
    )
    _publish(receipt, registered)
    return receipt


class _Bar:
    """Progress bar of the current phase; updated a step at a time, since each update is a call to
    the server."""

    def __init__(self, bar: artifacts.Progress) -> None:
        self._bar, self._shown = bar, -1

    def __call__(self, phase: str, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 0
        if tenth != self._shown:
            self._shown = tenth
            self._bar.update(tenth / 10)


def _publish(receipt: PrepReceipt, registered: PreparedArtifact) -> None:
    rows: list[dict[str, object]] = [
        {"what": "outcome", "value": "hit" if receipt.hit else "built"},
        {"what": "why", "value": receipt.explanation},
        {"what": "artifact", "value": f"art://{registered.name}@v{registered.version}"},
        {"what": "path", "value": receipt.artifact_path},
        {"what": "run hash", "value": receipt.run_hash},
        {"what": "revision", "value": receipt.revision or "files were put there by hand"},
        *(
            {"what": f"rows: {reason}", "value": count}
            for reason, count in receipt.row_stats.items()
        ),
        *(
            {"what": f"source {source.path}", "value": source.sha256}
            for source in receipt.sources[:20]
        ),
    ]
    artifacts.table(f"prepared-{receipt.name}", rows, "The prepared data and what it was made from")
