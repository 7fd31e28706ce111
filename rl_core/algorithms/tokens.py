"""Check that the trainers of tokens support an algorithm, before anything is started."""

from __future__ import annotations

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.diffusion_nft import DiffusionNft
from rl_core.algorithms.flow_presets import FlowPolicyGradient
from rl_core.algorithms.preference import Preference
from rl_core.algorithms.requirements import check_average, check_correction, check_whole_and_unpacked, named
from rl_core.errors import RecipeError
from schemas.recipe import Domain, Recipe


def check_serves_tokens(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Refuse algorithms that need inputs that a rollout of tokens, or this recipe, does not
    provide.

    Raises: RecipeError.
    """
    name = named(recipe)
    if isinstance(algorithm, Preference):
        raise RecipeError(f"algorithm {name} learns from pairs of answers: set domain: preference, or use grpo")
    if isinstance(algorithm, FlowPolicyGradient | DiffusionNft):
        raise RecipeError(f"algorithm {name} trains denoising steps, domain {recipe.domain} has tokens; use grpo")
    if algorithm.needs_ref_kl or algorithm.needs_old_kl:
        raise RecipeError(
            f"algorithm {name}: the exact KL exists between denoising steps; for tokens use kl.kind: k3, or the loss "
            "dppo_kl"
        )
    check_average(algorithm, recipe)
    check_correction(algorithm, recipe)
    if recipe.domain is Domain.VISION:
        check_whole_and_unpacked(recipe, "vision-language model")
    overlong, limit = getattr(algorithm.config, "overlong", None), recipe.rollout.max_new_tokens
    if overlong is not None and overlong.buffer > limit:
        raise RecipeError(
            f"algorithm.overlong.buffer is {overlong.buffer}, but replies end at rollout.max_new_tokens = {limit}; it "
            "must not be larger"
        )
    if algorithm.needs_critic and recipe.placement.tp_size > 1:
        raise RecipeError(
            f"algorithm {name} has a critic, whose value head cannot be cut for placement.tp_size = "
            f"{recipe.placement.tp_size}; set 1"
        )
