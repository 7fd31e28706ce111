"""The flow `rl-train`: validate → prepare → baseline → train N times → export → evaluate → register
→ judge → promote. With `registration.from: best` the iteration to export is chosen first.

The final evaluation reads back the exported folder, so that the judged weights are the registered
ones.

The flow runs the same way from `rl-train run`, against a Prefect server, and as a deployment.
"""

from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Completed

from flows.approval import ask_for_approval, is_decided
from flows.chain import run_chain
from flows.killed_run import report_if_killed
from rl_core.runs.chain.chains import is_chain, load_chain
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.child_reaper import no_orphans
from rl_core.runtime.home import Home
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import ChainReceipt, ModelReceipt
from schemas.sections.registration import Retrain, Weights
from tasks.choose_iteration import choose_iteration
from tasks.evaluate import evaluate
from tasks.export_model import export_model
from tasks.judge_model import judge_model
from tasks.look_for_news import look_for_news
from tasks.open_run import open_run
from tasks.prefect_ui.artifacts import delivered
from tasks.prefect_ui.task_runs import recorded
from tasks.prepare_cache import prepare_cache
from tasks.promote_model import promote_model
from tasks.register_model import register_model
from tasks.stop_if_asked import stop_if_asked
from tasks.train_iteration import train_iteration
from tasks.validate_data import validate_data
from tasks.write_report import write_report


@flow(name="rl-train", flow_run_name="rl-train {recipe}", validate_parameters=True)
def rl_train(
    recipe: str = "text",
    overrides: Sequence[str] = (),
    profile: str | None = None,
    fresh: bool = False,
    retrain: Retrain | None = None,
) -> ModelReceipt | ChainReceipt | State[Any]:
    """Train the policy of a recipe, or the stages of a chain, each in a flow run of its own.

    Args:
        recipe: A shipped recipe's name (`rl-train recipes` lists them), or the path of a YAML file
            on the worker.
        overrides: Dotted assignments on top of the recipe, such as `training.num_iterations=8`.
        profile: Profile of the machine: `cpu`, `one_gpu`, `one_node`, `many_nodes`; unset takes the
            recipe's own.
        fresh: Start over instead of continuing an earlier run of the same recipe and data.
        retrain: `continue` goes on where an earlier run was; `when-new` ends at once unless data,
            code or recipe are new; `always` trains again. Unset is `when-new` in a run that a
            schedule started, else `continue`. A chain always continues, unless it is `always`.
    """
    from rl_core.runs.ownership import owned_run
    from rl_core.runs.run_plan import starting_from
    from rl_core.runs.session import close_run, closing_sessions
    from rl_core.runs.teacher_score import TEACHER
    from rl_core.runs.versions.scorer_models import with_fixed_versions

    Home.default().activate()
    if is_chain(recipe):
        chain = load_chain(recipe, overrides, profile)
        return run_chain(chain, profile, fresh or retrain is Retrain.ALWAYS, rl_train)
    settings = with_fixed_versions(load_recipe(recipe, overrides, profile, _say), Home.default())
    values, training = settings.model_dump(mode="json"), settings.training
    with no_orphans(), recorded(), delivered(), closing_sessions():
        report_if_killed()
        report = validate_data(values)
        cache = prepare_cache(values, report)
        start_from = None
        if (wanted := retrain or usual_retrain()) is not Retrain.CONTINUE:
            news = look_for_news(values, cache, wanted)
            if not (news.train or fresh):
                return Completed(name="NothingNew", message=f"{news.reason}; nothing was trained")
            fresh, start_from = fresh or news.fresh, news.start_from
        origin = starting_from(settings, start_from)
        with owned_run(origin, cache.identity, Home.default(), _say):
            plan = open_run(values, report, cache, fresh, start_from)
            report_if_killed(plan)
            with close_run(plan):
                if settings.evaluation.teacher:
                    evaluate(plan, TEACHER, 0)
                baseline = evaluate(plan, "baseline", 0)
                for iteration in range(1, training.num_iterations + 1):
                    train_iteration(plan, iteration)
                    stop_if_asked(plan)
                    if settings.evaluates_after(iteration):
                        evaluate(plan, f"iteration-{iteration}", iteration, baseline)
                chosen = training.num_iterations
                if settings.registration.from_ is Weights.BEST:
                    chosen = choose_iteration(plan).iteration
                export_model(plan)
                final = evaluate(plan, "final", chosen, baseline, exported=True)
                version = register_model(plan, baseline, final)
                gate = judge_model(plan, baseline, final)
                approval = ask_for_approval(
                    settings.registration, version, gate, decided=is_decided(plan)
                )
                model = promote_model(plan, version, gate, approval)
                write_report(
                    plan, return_state=True
                )  # a report that fails shows as such, and costs no model
                return model


def usual_retrain() -> Retrain:
    """Return the default of `retrain`. A schedule cannot set it: Prefect empties its parameters
    when it is resumed."""
    context = FlowRunContext.get()
    scheduled = (
        context is not None and context.flow_run is not None and context.flow_run.auto_scheduled
    )
    if scheduled:
        return Retrain.WHEN_NEW
    return Retrain.CONTINUE


def _say(text: str) -> None:
    """Show a note in the display of `rl-train run`, and in the log of the flow run."""
    announce(ProgressEvent("note", text=text))
    get_run_logger().warning(text)


if __name__ == "__main__":
    rl_train()
