"""Approval of a new champion: a form in the Prefect UI that shows the comparison and asks a
person."""

from prefect import get_run_logger, pause_flow_run
from prefect.exceptions import FlowPauseTimeout
from prefect.input import RunInput
from prefect.runtime import deployment

from rl_core.runs.session import close_sessions, session_for
from schemas.receipts import (
    Approval,
    GateReceipt,
    ModelReceipt,
    RunPlan,
    ScoreChange,
    VersionReceipt,
)
from schemas.sections.registration import RegistrationConfig

PATIENCE_S = 7 * 24 * 3600
POLL_S = 10


class Decision(RunInput):
    """Form that the person fills in."""

    promote: bool = False
    reason: str = ""
    your_name: str = ""


def is_decided(plan: RunPlan) -> bool:
    """Return True if the fate of the run's version is settled, so that continuing the run decides
    nothing more."""
    return session_for(plan).folder.receipt("promote-model", ModelReceipt) is not None


def ask_for_approval(
    registration: RegistrationConfig,
    version: VersionReceipt,
    gate: GateReceipt,
    *,
    decided: bool = False,
) -> Approval:
    """Ask a person if the recipe requires it and the version passed the gate; otherwise nobody is
    asked.

    A run without a deployment has no UI to ask in: the version then waits for `rl-train promote`. A
    continued run that has `decided` does not ask again.
    """
    if decided or not (registration.approval and gate.passed):
        return Approval(given=True)
    if deployment.id is None:
        return Approval(
            given=False,
            reason=f"awaits approval: rl-train promote {version.name} {version.version}",
        )
    close_sessions()  # a person may take days; the devices are for others meanwhile
    get_run_logger().info("waiting for approval of %s v%s", version.name, version.version)
    try:
        form = Decision.with_initial_data(description=question(version, gate))
        answer = pause_flow_run(wait_for_input=form, timeout=PATIENCE_S, poll_interval=POLL_S)
    except FlowPauseTimeout:
        return Approval(given=False, reason=f"nobody approved it within {PATIENCE_S // 86400} days")
    by = answer.your_name or "somebody in the Prefect UI"
    said = f"{'approved' if answer.promote else 'refused'} by {by}"
    return Approval(
        given=answer.promote, by=by, reason=f"{said}: {answer.reason}" if answer.reason else said
    )


def question(version: VersionReceipt, gate: GateReceipt) -> str:
    """Return the comparison as Markdown."""
    scores = [gate.decided_by, *gate.guards] if gate.decided_by else gate.guards
    rows = "\n".join(map(_row, scores))
    return (
        f"Make **{version.name} v{version.version}** the champion in place of "
        f"{gate.compared_with}? {gate.reason}.\n\n| score | {gate.compared_with} | this version "
        f"| change | 95 % interval |\n|---|---|---|---|---|\n{rows}"
    )


def _row(one: ScoreChange) -> str:
    interval = f"{one.low:+.3f} to {one.high:+.3f}"
    return f"| {one.score} | {one.before:.3f} | {one.after:.3f} | {one.change:+.3f} | {interval} |"
