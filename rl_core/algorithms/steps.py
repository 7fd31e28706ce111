"""Check that the trainer of denoising steps supports an algorithm, before anything is started."""

from __future__ import annotations

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.diffusion_nft import DiffusionNft
from rl_core.algorithms.flow_presets import FlowPolicyGradient
from rl_core.algorithms.requirements import check_average, check_correction, check_whole_and_unpacked, named
from rl_core.algorithms.terms import Aggregation
from rl_core.errors import RecipeError
from rl_core.sde import action_steps
from schemas.recipe import Recipe

SPLITS = (Aggregation.TOKEN_MEAN, Aggregation.TOKEN_SUM)
"""Aggregations that give the same result for a row and for its parts."""


def check_serves_steps(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Refuse algorithms that need inputs that a rollout of denoising steps, or the recipe, does not
    provide.

    Raises: RecipeError.
    """
    name = named(recipe)
    if not isinstance(algorithm, FlowPolicyGradient | DiffusionNft):
        raise RecipeError(
            f"algorithm {name} trains tokens, domain diffusion has denoising steps; use flow_grpo, mix_grpo, "
            "dance_grpo, flow_dppo or diffusion_nft"
        )
    if not recipe.rewards:
        raise RecipeError("rewards: the domain diffusion has no environments; name at least one scorer")
    check_average(algorithm, recipe)
    check_correction(algorithm, recipe)
    _check_parts(algorithm, name)
    check_whole_and_unpacked(recipe, "diffusion model")
    if isinstance(algorithm, FlowPolicyGradient):
        _check_actions(algorithm, recipe)
    elif recipe.diffusion.share_noise:
        raise RecipeError(
            f"diffusion.share_noise: algorithm {name} draws noise at the start only, so that all samples of a prompt "
            "would be one; set false"
        )


def _check_parts(algorithm: StageAlgorithm, name: str | None) -> None:
    for needed, what in (
        (algorithm.needs_critic, "a critic, which reads tokens"),
        (algorithm.needs_greedy_baseline, "a greedy reply"),
        (algorithm.needs_sum_squared_probs, "probabilities of a vocabulary"),
        (algorithm.needs_entropy, "an entropy, which is constant for steps of fixed noise"),
        (algorithm.kl_in_reward, "a KL in the reward; use kl.place: loss"),
    ):
        if needed:
            raise RecipeError(f"algorithm {name} needs {what}; denoising steps have none")


def _check_actions(algorithm: FlowPolicyGradient, recipe: Recipe) -> None:
    config = recipe.diffusion
    try:
        num_actions = len(action_steps(algorithm.config.sde, config.num_steps, 0, recipe.seed))
    except ValueError as error:
        raise RecipeError(f"algorithm.{error}; diffusion.num_steps is {config.num_steps}") from error
    size = config.steps_per_forward
    if size is None or size >= num_actions:
        return
    if num_actions % size:
        raise RecipeError(
            f"diffusion.steps_per_forward {size} does not divide the {num_actions} trained steps of a rollout"
        )
    aggregation = algorithm.policy_loss.config.aggregation
    if aggregation not in SPLITS:
        raise RecipeError(
            f"diffusion.steps_per_forward {size} cuts rows, which algorithm.loss.aggregation {aggregation} weighs "
            "whole; use token-mean, or leave it out"
        )
