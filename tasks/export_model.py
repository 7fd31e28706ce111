"""The task export-model: write the trained model as a folder in a standard format, and compare it
with the trained policy."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from rl_core.data.store.weights import weights_digest
from rl_core.runs.session import session_for
from rl_core.runs.versions.best import chosen_iteration
from schemas.receipts import ExportReceipt, RunPlan
from tasks.retrying import worth_retrying


@task(
    name="export-model",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
def export_model(plan: RunPlan) -> ExportReceipt:
    """Write the weights of the chosen iteration, once.

    Raises: ExportMismatch when the written folder computes another policy.
    """
    session = session_for(plan)
    done = session.folder.receipt("export-model", ExportReceipt)
    if done is not None:
        return done
    iteration = chosen_iteration(session.folder, session.recipe)
    folder = session.export(iteration)
    digest = weights_digest(folder)
    receipt = ExportReceipt(model_path=str(folder), iteration=iteration, weights_digest=digest)
    session.folder.save_receipt("export-model", receipt)
    return receipt
