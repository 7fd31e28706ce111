"""The task evaluate-served: put the held-out rows and the named sets to a server."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from rl_core.runs import served
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import EvalReceipt, RunPlan
from tasks.evaluate import show_scores, shown_progress
from tasks.prefect_ui.notes import logged_notes
from tasks.retrying import worth_retrying


@task(
    name="evaluate-served",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
def evaluate_served(plan: RunPlan, label: str, url: str, served_model: str) -> EvalReceipt:
    """Score a model behind an OpenAI-compatible server.

    Raises: RecipeError, RewardError, ServiceError, Unreachable.
    """
    with logged_notes(), shown_progress(label):
        receipt = served.evaluate_served(plan, label, url, served_model)
    announce(ProgressEvent("done", receipt=receipt))
    show_scores([receipt])
    return receipt
