"""The task judge-model: compare challenger and incumbent on the same held-out rows, and decide if
the new version passes the gate."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.errors import UserError
from rl_core.evaluation.compared import compared_rows
from rl_core.evaluation.gate import Judged, judge, undecided
from rl_core.runs.session import session_for
from rl_core.runs.versions.champion import incumbent_of
from rl_core.runtime.home import Home
from schemas.receipts import EvalReceipt, GateReceipt, RunPlan
from tasks.prefect_ui import artifacts


@task(name="judge-model", cache_policy=NO_CACHE)
def judge_model(plan: RunPlan, baseline: EvalReceipt, final: EvalReceipt) -> GateReceipt:
    """Compare the trained model with the champion, or with the baseline if there is no champion."""
    session = session_for(plan)
    done = session.folder.receipt("judge-model", GateReceipt)
    if done is not None:
        return done
    settings = session.recipe.registration
    try:
        incumbent = incumbent_of(plan, baseline, Home.default())
    except UserError as error:
        # The training is done and registered; that the champion is gone is for a person to settle.
        gate = undecided("the champion", f"the champion could not be evaluated: {error}", settings)
    else:
        rows = compared_rows(final, settings)
        assert rows is not None, "the evaluation after training measures every set"
        gate = judge(Judged("this version", rows), incumbent, settings)
    session.folder.save_receipt("judge-model", gate)
    session.tracking.log_text(gate.model_dump_json(indent=2), "receipts/gate.json")
    artifacts.table(
        "comparison", comparison_rows(gate), f"Against {gate.compared_with}: {gate.reason}"
    )
    return gate


def comparison_rows(gate: GateReceipt) -> list[dict[str, object]]:
    """Return one table row per compared score."""
    scores = [gate.decided_by, *gate.guards] if gate.decided_by else gate.guards
    rows: list[dict[str, object]] = []
    for one in scores:
        rows.append(
            {
                "score": one.score,
                "part": "decides" if one is gate.decided_by else "guard",
                gate.compared_with: f"{one.before:.3f}",
                "this version": f"{one.after:.3f}",
                "change": f"{one.change:+.3f}",
                "95 % interval": f"{one.low:+.3f} to {one.high:+.3f}",
                "held": "yes" if one.held else "no",
            }
        )
    return rows
