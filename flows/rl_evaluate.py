"""The flow `rl-evaluate`: validate → prepare → evaluate, for one model and no training."""

from collections.abc import Sequence

from prefect import flow

from flows.killed_run import report_if_killed
from rl_core.runtime.child_reaper import no_orphans
from rl_core.runtime.home import Home
from schemas.receipts import EvalReceipt
from tasks.evaluate import evaluate
from tasks.evaluate_served import evaluate_served
from tasks.export_iteration import export_iteration
from tasks.open_evaluation import open_evaluation
from tasks.prefect_ui.artifacts import delivered
from tasks.prefect_ui.task_runs import recorded
from tasks.prepare_cache import prepare_cache
from tasks.validate_data import validate_data


@flow(name="rl-evaluate", flow_run_name="rl-evaluate {model}", validate_parameters=True)
def rl_evaluate(
    model: str = "models:/rl-train-text@champion",
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    profile: str | None = None,
    served_model: str | None = None,
) -> EvalReceipt:
    """Evaluate a model on a recipe's held-out rows.

    Args:
        model: `models:/NAME@champion`, `models:/NAME/VERSION`, an iteration of a run as `RUN@12`,
            a folder, a hub id, `embedded:...`, or the address of an OpenAI-compatible server,
            `http://host:port/v1`.
        recipe: A shipped recipe's name or the path of a YAML file; unset takes the one the version
            was trained with.
        overrides: Dotted assignments on top of the recipe, such as `evaluation.max_new_tokens=128`.
        profile: Profile of the machine: `cpu`, `one_gpu`, `one_node`, `many_nodes`; unset takes the
            recipe's own.
        served_model: Name of the model on the server.
    """
    from rl_core.runs.evaluation import LABEL, check_served, evaluation_recipe, find_candidate
    from rl_core.runs.session import close_run, closing_sessions

    home = Home.default()
    home.activate()
    candidate = find_candidate(model, home)
    settings = evaluation_recipe(candidate, recipe, overrides, profile, home)
    name = check_served(candidate, served_model, settings)
    values = settings.model_dump(mode="json")
    with no_orphans(), recorded(), delivered(), closing_sessions():
        report_if_killed()
        report = validate_data(values)
        if candidate.iteration is not None:
            export_iteration(model)
        plan = open_evaluation(values, prepare_cache(values, report), model)
        report_if_killed(plan)
        with close_run(plan):
            if candidate.url is not None and name is not None:
                return evaluate_served(plan, LABEL, candidate.url, name)
            return evaluate(plan, LABEL, 0)


if __name__ == "__main__":
    rl_evaluate()
