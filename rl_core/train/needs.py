"""Packages that a training needs besides the project's own, asked for before anything is spent."""

from importlib.util import find_spec

from rl_core.errors import RecipeError
from schemas.recipe import Recipe
from schemas.sections.optimizer import OptimizerKind


def check_packages(recipe: Recipe) -> None:
    """Check that bitsandbytes is installed where a recipe stores anything in few bits.

    Raises: RecipeError with the line that installs it.
    """
    images = None if recipe.tracks is None else recipe.tracks.images.optimizer
    asked = [
        f"optimizer.name: {one.name}"
        for one in (recipe.optimizer, recipe.value_model.optimizer, images)
        if one is not None and one.name is OptimizerKind.ADAMW_8BIT
    ]
    if recipe.model.quantize is not None:
        asked.append(f"model.quantize: {recipe.model.quantize}")
    if asked and find_spec("bitsandbytes") is None:
        raise RecipeError(
            f"{asked[0]} needs bitsandbytes, which is not installed; run "
            "pip install -c constraints.txt -e '.[bitsandbytes]', or leave it out"
        )
