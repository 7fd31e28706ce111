"""Packages that an optimizer needs, asked for before a run spends anything."""

from importlib.util import find_spec

from rl_core.errors import RecipeError
from schemas.recipe import Recipe
from schemas.sections.optimizer import OptimizerKind


def check_optimizers(recipe: Recipe) -> None:
    """Check that the packages of a recipe's optimizers are installed.

    Raises: RecipeError with the line that installs a missing one.
    """
    images = None if recipe.tracks is None else recipe.tracks.images.optimizer
    critic = None if recipe.value_model is None else recipe.value_model.optimizer
    for optimizer in (recipe.optimizer, images, critic):
        if optimizer is None or optimizer.name is not OptimizerKind.ADAMW_8BIT:
            continue
        if find_spec("torchao") is None:
            raise RecipeError(
                "optimizer.name: adamw_8bit needs torchao, which is not installed; run "
                "pip install -c constraints.txt -e '.[adamw_8bit]', or take adamw"
            )
