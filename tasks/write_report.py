"""The task write-report: write the run's results as one HTML file to the run's folder and to
MLflow."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.reporting import report
from rl_core.reporting.rollouts_page import page_name
from rl_core.reporting.run_record import RunRecord
from rl_core.runs.session import session_for
from rl_core.runtime.home import Home
from schemas.receipts import RunPlan
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.artifacts import as_it_is


@task(name="write-report", cache_policy=NO_CACHE)
def write_report(plan: RunPlan) -> str:
    """Write and publish the report. Returns: its path."""
    session = session_for(plan)
    path = report.write_report(RunRecord(session.folder), Home.default())
    session.tracking.log_artifact(path)
    rollouts = path.with_name(page_name(path))
    if rollouts.is_file():
        session.tracking.log_artifact(rollouts)
    url = f"{plan.mlflow_url}/artifacts/report.html"
    artifacts.markdown(
        "report",
        f"[Report of the run]({url}), also at {as_it_is(str(path))}",
        "Curves, samples, lineage on one page",
    )
    return str(path)
