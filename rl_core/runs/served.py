"""Evaluation of a model behind a server: the same rows, environments and receipts, without
workers."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from rl_core.data.prepare.prompts import load_prepared
from rl_core.envs.registration import portable_options
from rl_core.errors import RecipeError
from rl_core.evaluation.served import Served
from rl_core.runs.held_out import Play, measure, sets_due
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.run_plan import reopen_tracking
from rl_core.runtime.home import Home
from rl_core.tracking.evaluations import log_evaluation
from schemas.receipts import EvalReceipt, RunPlan
from schemas.recipe import Recipe
from schemas.rows.contract import SchemaName


def check_servable(recipe: Recipe) -> None:
    """Check that a recipe's held-out rows can be put to a server. Raises: RecipeError."""
    if recipe.domain.traits.rows is not SchemaName.PROMPT or recipe.domain.traits.page is None:
        raise RecipeError(
            f"{recipe.name}: a server is asked in the domain text alone, not {recipe.domain}"
        )
    if recipe.evaluation.scorers:
        raise RecipeError(
            f"{recipe.name}: evaluation.scorers run beside a trainer, and a server has none; set "
            "evaluation.scorers=false"
        )


def evaluate_served(plan: RunPlan, label: str, url: str, model: str) -> EvalReceipt:
    """Put the held-out rows and the sets to a server, and store the receipt.

    Raises: RecipeError; RewardError when too many rows have no verdict; ServiceError, Unreachable.
    """
    recipe, folder = Recipe.model_validate(plan.recipe), RunFolder(Path(plan.run_dir))
    done = folder.receipt(f"evaluate-{label}", EvalReceipt)
    if done is not None:
        return done.model_copy(update={"skipped": True})
    check_servable(recipe)
    served = Served(
        url,
        model,
        portable_options(recipe.environments),
        recipe.rollout.stop or (),
        at_once=recipe.rollout.max_batch_size,
        seed=recipe.seed,
    )
    receipt = measure(
        # What a server plays are conversations; other domains are refused above.
        cast(Play, served.play),
        recipe,
        load_prepared(Path(plan.cache.path) / "eval.parquet"),
        {name: load_prepared(Path(plan.cache.sets[name].path)) for name in sets_due(recipe, label)},
        label=label,
        step=0,
        samples=folder.root / "samples",
    )
    folder.save_receipt(f"evaluate-{label}", receipt)
    tracking = reopen_tracking(plan, Home.default())
    log_evaluation(tracking, receipt, "eval")
    tracking.flush()
    return receipt
