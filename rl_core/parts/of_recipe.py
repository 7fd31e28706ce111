"""Check of the parts that a recipe replaces: each class, and whether the recipe uses the part at
all."""

from __future__ import annotations

from rl_core.errors import RecipeError
from rl_core.parts import (
    Averages,
    PartRegistry,
    Probes,
    Receives,
    backends,
    bundles,
    engines,
    stacks,
    syncs,
    trainers,
)
from rl_core.parts.registry import hold_to
from schemas.recipe import Recipe

REGISTRIES: dict[str, PartRegistry] = {
    one.kind: one for one in (bundles, backends, stacks, engines, syncs, trainers)
}


def check_parts(recipe: Recipe) -> None:
    """Check every block that names a part.

    Raises: RecipeError when a class cannot be imported or lacks what this recipe needs of it, a key
    of a block is unknown, or the part has no use in this recipe.
    """
    named = _named(recipe)
    owns_model = recipe.rollout.engine.owns_model
    if "sync" in named and not owns_model:
        raise RecipeError(
            f"sync: nothing is sent with rollout.engine: {recipe.rollout.engine}, which samples "
            "with the trained module; leave the block out, or use dedicated or vllm"
        )
    if "bundle" in named and recipe.rollout.engine.is_vllm:
        raise RecipeError(
            "bundle: vllm loads the model by classes of its own; leave the block out, or use "
            "rollout.engine: in_process or dedicated"
        )
    if "engine" in named and owns_model:
        hold_to(Receives, named["engine"], "engine")
    if "backend" in named and recipe.ema is not None:
        hold_to(Averages, named["backend"], "backend")
    if "backend" in named and owns_model and "sync" not in named:
        hold_to(Probes, named["backend"], "backend")


def _named(recipe: Recipe) -> dict[str, type]:
    """Return the classes that the recipe names. Raises: RecipeError with the problems of every
    block."""
    named: dict[str, type] = {}
    problems = []
    for part, registry in REGISTRIES.items():
        if (block := getattr(recipe, part)) is not None:
            try:
                named[part] = registry.resolve(block, part)[0]
            except RecipeError as error:
                problems.append(str(error))
    if problems:
        raise RecipeError("\n".join(problems))
    return named
