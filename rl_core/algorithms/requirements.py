"""What several domains ask of a recipe for the same reason, checked before anything is started."""

from __future__ import annotations

from rl_core.algorithms.base import StageAlgorithm
from rl_core.errors import RecipeError
from schemas.recipe import Recipe


def check_multi_update(
    algorithm: StageAlgorithm, num_updates_per_batch: int, num_epochs: int, name: str | None = None
) -> None:
    """Raises: RecipeError where an algorithm that assumes the policy of the rollout would update it more than once.

    Args: name: what the message calls the algorithm; its class's name when unset.
    """
    if algorithm.supports_multi_update:
        return
    for key, value in (("num_updates_per_batch", num_updates_per_batch), ("num_epochs", num_epochs)):
        if value > 1:
            raise RecipeError(
                f"training.{key} is {value}, but algorithm {name or type(algorithm).__name__} does not correct for the "
                "policy having moved since the rollout: set 1, or use an algorithm that does"
            )


def check_average(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Raises: RecipeError where an algorithm samples with a moving average that the recipe does not keep."""
    if algorithm.rolls_out_average and (recipe.ema is None or not recipe.ema.rollout):
        raise RecipeError(
            f"algorithm {named(recipe)} samples with the moving average: set ema_lora: {{rollout: true}}, or ema_full: "
            "{mirror: true, rollout: true}"
        )


def check_correction(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Raises: RecipeError where samples of older weights would be trained as if they were of the present ones."""
    if recipe.rollout.steps_ahead and not algorithm.needs_rollout_log_probs:
        raise RecipeError(
            f"rollout.steps_ahead: 1 trains on samples of older weights, which algorithm {named(recipe)} does not "
            "correct for: set algorithm.correction, for example {level: token, upper: 2.0}, or steps_ahead: 0"
        )


def check_whole_and_unpacked(recipe: Recipe, what: str) -> None:
    """Raises: RecipeError where the placement cuts or packs a model of a kind (`what`) that takes neither."""
    placed = recipe.placement
    for name, value, fitting in (
        ("tp_size", placed.tp_size, 1),
        ("sp_size", placed.sp_size, 1),
        ("max_tokens_per_micro_batch", placed.max_tokens_per_micro_batch, None),
    ):
        if value != fitting:
            said = "null" if fitting is None else fitting
            raise RecipeError(
                f"placement.{name} is {value}: a {what} is neither cut over ranks nor packed; set placement.{name} "
                f"to {said}"
            )


def named(recipe: Recipe) -> str | None:
    """The algorithm as the recipe calls it."""
    return recipe.algorithm.get("name") or recipe.algorithm.get("target")
