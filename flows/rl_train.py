"""The flow `rl-train`: validate → prepare → baseline → train N times → evaluate → register.

It runs the same way from `rl-train run`, against a Prefect server, and as a deployment.
"""

from collections.abc import Sequence

from prefect import flow

from rl_core.home import Home
from rl_core.orphans import no_orphans
from rl_core.recipes import load_recipe
from schemas.receipts import ModelReceipt
from tasks.evaluate import evaluate
from tasks.open_run import open_run
from tasks.prepare_cache import prepare_cache
from tasks.register_model import register_model
from tasks.train_iteration import train_iteration
from tasks.validate_data import validate_data


@flow(name="rl-train", flow_run_name="rl-train {recipe}", validate_parameters=True)
def rl_train(
    recipe: str = "text", overrides: Sequence[str] = (), profile: str | None = None, fresh: bool = False
) -> ModelReceipt:
    """Train what a recipe says.

    Args: recipe: a shipped recipe's name or a YAML path. overrides: dotted assignments. profile: placement.
    fresh: forget what an earlier run of the same recipe and data had reached.
    """
    from rl_core.trainers.session import close_run, closing_sessions

    Home.default().activate()
    settings = load_recipe(recipe, overrides, profile)
    values, training = settings.model_dump(mode="json"), settings.training
    with no_orphans(), closing_sessions():
        report = validate_data(values)
        cache = prepare_cache(values, report)
        plan = open_run(values, report, cache, fresh)
        with close_run(plan):
            baseline = evaluate(plan, "baseline", 0)
            for iteration in range(1, training.num_iterations + 1):
                train_iteration(plan, iteration)
                if settings.evaluates_after(iteration):
                    evaluate(plan, f"iteration-{iteration}", iteration, baseline)
            final = evaluate(plan, "final", training.num_iterations, baseline)
            return register_model(plan, baseline, final)


if __name__ == "__main__":
    rl_train()
