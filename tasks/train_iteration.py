"""The task train-iteration: run some training steps that end in a complete checkpoint. A retry
resumes from the last one."""

from functools import partial
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run
from prefect.tasks import exponential_backoff

from rl_core.runs.session import TrainingSession, session_for
from rl_core.tracking.plots import reward_curve
from rl_core.trainers.progress import ProgressEvent, announce, listeners
from schemas.receipts import IterationReceipt, RunPlan
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.notes import logged_notes
from tasks.prefect_ui.watch_events import alarms_as_events
from tasks.retrying import worth_retrying


def _run_name() -> str:
    parameters: dict[str, Any] = task_run.parameters
    total = parameters["plan"].recipe["training"]["num_iterations"]
    return f"train-iteration {parameters['iteration']}/{total}"


@task(
    name="train-iteration",
    task_run_name=_run_name,
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
def train_iteration(plan: RunPlan, iteration: int) -> IterationReceipt:
    """Run iteration number `iteration` (from 1), or skip it when its checkpoint is complete."""
    session = session_for(plan)
    steps = plan.recipe["training"]["steps_per_iteration"]
    progress = artifacts.Progress("progress", f"Steps of iteration {iteration}")

    def follow(event: ProgressEvent) -> None:
        if event.phase == "step":
            progress.update((event.step - (iteration - 1) * steps) / steps)

    listeners.append(follow)
    try:
        with logged_notes(), alarms_as_events(plan):
            receipt = session.train_iteration(iteration)
    finally:
        listeners.remove(follow)
    progress.update(1.0)
    announce(ProgressEvent("done", receipt=receipt))
    if not receipt.skipped:
        _publish(session)
    return receipt


def _publish(session: TrainingSession) -> None:
    folder, curve = session.folder, session.recipe.domain.traits.curve
    history, evaluations = folder.history(), folder.evaluations()
    # The next steps need not wait for it.
    draw = partial(reward_curve, history, evaluations, curve=curve)
    artifacts.drawing("reward-curve", draw, "Learning per step")
