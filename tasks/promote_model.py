"""The task promote-model: move the champion alias to a version that passed the gate and was
approved, if approval is required."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.runs.session import session_for
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import champion
from schemas.receipts import Approval, GateReceipt, ModelReceipt, RunPlan, VersionReceipt
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.artifacts import as_it_is
from tasks.prefect_ui.champion_events import make_champion


@task(name="promote-model", cache_policy=NO_CACHE)
def promote_model(
    plan: RunPlan, version: VersionReceipt, gate: GateReceipt, approval: Approval
) -> ModelReceipt:
    """Make the version champion if gate and approval agree; a run decides once."""
    session = session_for(plan)
    done = session.folder.receipt("promote-model", ModelReceipt)
    if done is not None:
        return done
    promoted = gate.passed and approval.given
    reason = "; ".join(text for text in (gate.reason, approval.reason) if text)
    if promoted:
        _move_alias(plan, version, reason, approval)
    receipt = ModelReceipt(**version.model_dump(), gate=gate, promoted=promoted, reason=reason)
    session.folder.save_receipt("promote-model", receipt)
    session.tracking.set_tags(
        {"model": f"{receipt.name} v{receipt.version}", "promoted": promoted, "verdict": reason}
    )
    outcome = "moved to this version" if promoted else "stays where it was"
    artifacts.markdown(
        "model",
        f"**{as_it_is(receipt.name)} v{receipt.version}**: champion alias {outcome}.\n\n"
        f"{as_it_is(reason)}.\n\nFolder: {as_it_is(receipt.model_path)}",
        "The registered model",
    )
    return receipt


def _move_alias(plan: RunPlan, version: VersionReceipt, reason: str, approval: Approval) -> None:
    uri = Home.default().mlflow_uri
    present = champion(uri, version.name)
    if present is None or present.version != version.version:
        by = approval.by or f"gate of run {plan.mlflow_run_id}"
        make_champion(uri, version.name, version.version, reason, by)
