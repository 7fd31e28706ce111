"""The number of devices that a recipe's batches divide into, where it cannot have all that it asks
for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rl_core.errors import RecipeError
from schemas.recipe import Recipe


def fitted(recipe: Recipe, most: int, least: int = 1) -> Recipe:
    """Return the recipe on as many devices as it can use, at most `most`.

    Raises: RecipeError when no number from `least` to `most` suits its batches.
    """
    values = recipe.model_dump(mode="json", by_alias=True)
    for number in range(most, least - 1, -1):
        if (fitting := on_devices(values, number)) is not None:
            return fitting
    raise RecipeError(
        f"recipe {recipe.name}: its batches divide into no number of devices from {least} to "
        f"{most}; change placement.min_devices or training.prompts_per_step"
    )


def fewer_devices(values: dict[str, Any], most: int) -> dict[str, Any]:
    """Return the values of a recipe with as many devices as its batches divide into, at most
    `most`; unchanged where no number helps, so that whoever reads them says what is wrong."""
    for number in range(most, 0, -1):
        if on_devices(values, number) is not None:
            return {**values, "placement": {**values["placement"], "num_devices": number}}
    return values


def idle_devices(recipe: Recipe, profile: str, most: int) -> str:
    """Say that a recipe leaves devices of its profile idle. Args: most: devices of the profile."""
    number = recipe.placement.num_devices
    return (
        f"{recipe.name} runs on {number} of the {most} devices of profile {profile}, the most that "
        f"its batches divide into; {most - number} stay idle (training.prompts_per_step, "
        "placement.num_devices)"
    )


def on_devices(values: Mapping[str, Any], number: int) -> Recipe | None:
    """Return the recipe of plain values on a number of devices; None if they do not suit it."""
    placed = {**values["placement"], "num_devices": number}
    if placed.get("min_devices") is not None:
        placed["min_devices"] = min(placed["min_devices"], number)
    try:
        return Recipe.model_validate({**values, "placement": placed})
    except ValidationError:
        return None
