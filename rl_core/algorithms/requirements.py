"""Requirements on a recipe that several domains share, checked before anything is started."""

from __future__ import annotations

from rl_core.algorithms.base import StageAlgorithm
from rl_core.errors import RecipeError
from schemas.recipe import Recipe


def check_multi_update(
    algorithm: StageAlgorithm, num_updates_per_batch: int, num_epochs: int, name: str | None = None
) -> None:
    """Refuse several updates per rollout with an algorithm that assumes the policy of the rollout.

    Args: name: name of the algorithm in the message; its class's name when unset. Raises:
    RecipeError.
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
    """Refuse an algorithm that samples with a moving average that the recipe does not keep.

    Raises: RecipeError.
    """
    if algorithm.rolls_out_average and (recipe.ema is None or not recipe.ema.rollout):
        raise RecipeError(
            f"algorithm {named(recipe)} samples with the moving average: set ema_lora: {{rollout: true}}, or ema_full: "
            "{mirror: true, rollout: true}"
        )


def check_correction(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Refuse recipes that would train samples of older weights as if they were of the current ones.

    Raises: RecipeError.
    """
    if recipe.rollout.steps_ahead and not algorithm.needs_rollout_log_probs:
        raise RecipeError(
            f"rollout.steps_ahead: 1 trains on samples of older weights, which algorithm {named(recipe)} does not "
            "correct for: set algorithm.correction, for example {level: token, upper: 2.0}, or steps_ahead: 0"
        )


def check_whole_and_unpacked(recipe: Recipe, what: str) -> None:
    """Refuse placements that split or pack a kind of model (`what`) that supports neither.

    Raises: RecipeError.
    """
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
    """Return the algorithm's name in the recipe."""
    return recipe.algorithm.get("name") or recipe.algorithm.get("target")
