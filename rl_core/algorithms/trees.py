"""Check that the trainers of two tracks support an algorithm, before anything is started."""

from __future__ import annotations

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.requirements import named
from rl_core.errors import RecipeError
from schemas.recipe import Recipe


def check_serves_tracks(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Refuse algorithms of the track `text` that need inputs that a tree of rewrites does not
    provide.

    Raises: RecipeError.
    """
    for needed, what in (
        (algorithm.needs_critic, "a critic"),
        (algorithm.needs_greedy_baseline, "a greedy reply that is rewarded"),
        (algorithm.dynamic_sampling, "further rollouts for groups that teach nothing"),
        (algorithm.rolls_out_average, "a moving average to sample with"),
    ):
        if needed:
            raise RecipeError(
                f"algorithm {named(recipe)} needs {what}, which the domain {recipe.domain} does not have; use grpo"
            )
    if recipe.diffusion.num_frames > 1:
        raise RecipeError(
            f"diffusion.num_frames is {recipe.diffusion.num_frames}: the domain {recipe.domain} draws pictures; set 1"
        )
