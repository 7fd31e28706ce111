"""The task choose-iteration: compare the evaluated iterations, and say which one is registered."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.runs.session import session_for
from rl_core.runs.versions.best import RECEIPT, choose
from rl_core.tracking.lineage import CHOSEN_TAG
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import ChoiceReceipt, RunPlan
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.artifacts import as_it_is


@task(name="choose-iteration", cache_policy=NO_CACHE)
def choose_iteration(plan: RunPlan) -> ChoiceReceipt:
    """Choose the iteration to export, once, and publish the reason."""
    session = session_for(plan)
    done = session.folder.receipt(RECEIPT, ChoiceReceipt)
    if done is not None:
        return done
    receipt = choose(session.folder, session.recipe)
    session.folder.save_receipt(RECEIPT, receipt)
    session.tracking.set_tags(
        {"registered_iteration": receipt.iteration, CHOSEN_TAG: receipt.reason}
    )
    artifacts.markdown("iteration", as_it_is(str(receipt)), "The iteration that is registered")
    announce(ProgressEvent("note", text=str(receipt)))
    return receipt
