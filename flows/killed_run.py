"""The last word of a flow that was killed, said by the process that outlives it.

A flow that ends by itself says so to Prefect and MLflow. After a `kill -9`, or when the system is
out of memory, both would show it as running for ever.
"""

import os
import sys
from contextlib import suppress

from rl_core.runtime.child_reaper import run_if_killed
from schemas.receipts import RunPlan


def report_if_killed(plan: RunPlan | None = None) -> None:
    """Have this flow run, and the MLflow run of `plan`, marked as ended if this process is killed.

    Without effect outside of `no_orphans` and of a flow run.
    """
    from prefect.runtime import flow_run
    from prefect.settings import PREFECT_API_URL

    if not flow_run.id:
        return
    command = [sys.executable, "-P", "-m", __name__, str(flow_run.id)]
    if plan is not None:
        from rl_core.runs.session import session_for

        command += [session_for(plan).tracking.tracking_uri, plan.mlflow_run_id]
    run_if_killed(command, {"PREFECT_API_URL": PREFECT_API_URL.value() or ""})


def mark_prefect(flow_run_id: str) -> None:
    """Mark a flow run as crashed, unless it has ended, and likewise the chain that it is a stage
    of."""
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.states import Crashed

    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(flow_run_id))
        if run.state is None or not run.state.is_final():
            said = "The process of the flow run was killed; the same command continues the run."
            client.set_flow_run_state(run.id, Crashed(message=said), force=True)
        if run.parent_task_run_id is None:
            return
        above = client.read_task_run(run.parent_task_run_id).flow_run_id
    if above is not None:
        mark_prefect(str(above))


def mark_mlflow(tracking_uri: str, run_id: str, flow_run_id: str) -> None:
    """Mark an MLflow run as failed, unless it has ended, or another flow run goes on with it."""
    from rl_core.tracking.database import tracking_client
    from rl_core.tracking.run import RunStatus

    client = tracking_client(tracking_uri)
    run = client.get_run(run_id)
    if run.info.status == "RUNNING" and run.data.tags.get("prefect.flow_run_id") == flow_run_id:
        client.set_terminated(run_id, status=RunStatus.FAILED)


def main(flow_run_id: str, tracking_uri: str = "", mlflow_run_id: str = "") -> None:
    """Mark both; one that does not answer does not keep the other from it."""
    with suppress(Exception):
        if os.environ["PREFECT_API_URL"]:
            mark_prefect(flow_run_id)
    if mlflow_run_id:
        mark_mlflow(tracking_uri, mlflow_run_id, flow_run_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
