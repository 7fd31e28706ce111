"""The task open-evaluation: create a folder and an MLflow run for one evaluation, linked with this
flow run."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.runs import evaluation
from rl_core.runtime.home import Home
from schemas.receipts import CacheReceipt, RunPlan
from schemas.recipe import Recipe
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.flow_links import flow_run_tags


@task(name="open-evaluation", cache_policy=NO_CACHE)
def open_evaluation(recipe: dict[str, object], cache: CacheReceipt, model: str) -> RunPlan:
    """Create the folder and the MLflow run of an evaluation of `model`.

    Args: model: as `find_candidate` takes it. Raises: StorageError, ModelError.
    """
    home = Home.default()
    candidate = evaluation.find_candidate(model, home)
    plan = evaluation.open_evaluation(
        Recipe.model_validate(recipe), cache, candidate, home, flow_run_tags()
    )
    artifacts.link("mlflow-run", plan.mlflow_url, "MLflow run", f"MLflow run {plan.mlflow_run_id}")
    return plan
