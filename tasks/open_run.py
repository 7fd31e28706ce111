"""The task open-run: open the run's folder and MLflow run, linked with this flow run; the same key
continues the same run."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.runs import run_plan
from rl_core.runs.retraining import origin_of
from rl_core.runtime.home import Home
from schemas.receipts import CacheReceipt, RunPlan, ValidationReport
from schemas.recipe import Recipe
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.flow_links import flow_run_tags


@task(name="open-run", cache_policy=NO_CACHE)
def open_run(
    recipe: dict[str, object],
    report: ValidationReport,
    cache: CacheReceipt,
    fresh: bool,
    start_from: str | None = None,
) -> RunPlan:
    """Open or continue the run of this recipe and data.

    Args: fresh: start the run over. start_from: a folder of weights instead of the recipe's.
    """
    written = Recipe.model_validate(recipe)
    plan = run_plan.open_run(
        run_plan.starting_from(written, start_from),
        report,
        cache,
        Home.default(),
        fresh=fresh,
        tags=flow_run_tags(),
        origin=origin_of(written, cache),
    )
    artifacts.link("mlflow-run", plan.mlflow_url, "MLflow run", f"MLflow run {plan.mlflow_run_id}")
    return plan
