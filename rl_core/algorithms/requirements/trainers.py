"""Checks that the trainers can serve an algorithm and that a recipe fits it, before any start."""

from __future__ import annotations

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.bradley_terry import BradleyTerry
from rl_core.algorithms.diffusion_nft import DiffusionNft
from rl_core.algorithms.distillation import Distillation
from rl_core.algorithms.flow_presets import FlowPolicyGradient
from rl_core.algorithms.flow_sft import FlowSft
from rl_core.algorithms.pairs import PairAlgorithm
from rl_core.algorithms.preference import Preference
from rl_core.algorithms.requirements.group_size import learning_tracks
from rl_core.algorithms.requirements.teachers import check_teachers
from rl_core.algorithms.sft import Sft
from rl_core.algorithms.terms import Aggregation
from rl_core.errors import RecipeError
from rl_core.sde import action_steps
from schemas.domains import ModelKind
from schemas.recipe import ExportKind, Recipe
from schemas.sections.preference import ReferenceMode
from schemas.sections.rollout import EngineKind

SPLITS = (Aggregation.TOKEN_MEAN, Aggregation.TOKEN_SUM)
"""Aggregations that give the same result for a row and for its parts."""
WITHOUT_GROUPS = "reinforce_plus_plus"
"""Token algorithm that works with one sample per prompt."""


def check_serves_tokens(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Refuse algorithms that need inputs that a rollout of tokens, or this recipe, does not
    provide.

    Raises: RecipeError.
    """
    name = named(recipe)
    if isinstance(algorithm, PairAlgorithm):
        wanted = "preference" if isinstance(algorithm, Preference) else "reward_model"
        raise RecipeError(
            f"algorithm {name} learns from pairs of answers: set domain: {wanted}, or use grpo"
        )
    if isinstance(algorithm, Sft):
        raise RecipeError(f"algorithm {name} learns given answers: set domain: sft, or use grpo")
    if isinstance(algorithm, FlowPolicyGradient | DiffusionNft | FlowSft):
        raise RecipeError(
            f"algorithm {name} trains denoising steps, domain {recipe.domain} has tokens; use grpo"
        )
    if algorithm.needs_ref_kl or algorithm.needs_old_kl:
        raise RecipeError(
            f"algorithm {name}: the exact KL exists between denoising steps; for tokens use "
            "kl.kind: k3, or the loss dppo_kl"
        )
    if isinstance(algorithm, Distillation):
        check_teachers(algorithm.config, recipe, name)
    _check_average(algorithm, recipe)
    _check_correction(algorithm, recipe)
    if recipe.domain.traits.model is ModelKind.SEEING:
        _check_whole_and_unpacked(recipe, "vision-language model")
    overlong, limit = getattr(algorithm.config, "overlong", None), recipe.rollout.max_new_tokens
    if overlong is not None and overlong.buffer > limit:
        raise RecipeError(
            f"algorithm.overlong.buffer is {overlong.buffer}, but replies end at "
            f"rollout.max_new_tokens = {limit}; it must not be larger"
        )
    if algorithm.needs_critic and recipe.placement.tp_size > 1:
        raise RecipeError(
            f"algorithm {name} has a critic, whose value head cannot be cut for "
            f"placement.tp_size = {recipe.placement.tp_size}; set 1"
        )
    if algorithm.needs_critic and recipe.placement.ep_size > 1:
        raise RecipeError(
            f"algorithm {name} has a critic, whose experts are not dealt out for "
            f"placement.ep_size = {recipe.placement.ep_size}; set 1"
        )


def check_serves_scores(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Refuse what a reward model is not trained with.

    Raises: RecipeError.
    """
    if not isinstance(algorithm, BradleyTerry):
        raise RecipeError(
            f"algorithm {named(recipe)} does not train scores; the domain {recipe.domain} takes "
            "algorithm: {name: bradley_terry}"
        )
    if recipe.lora is not None and recipe.lora.export is ExportKind.ADAPTER:
        raise RecipeError(
            "lora.export: adapter: a reward model is registered whole, with its score head; set "
            "merged"
        )
    if recipe.preference.reference is not ReferenceMode.FORWARD:
        raise RecipeError(
            "preference.reference: a reward model is compared with no reference; leave it out"
        )
    if recipe.placement.tp_size > 1:
        raise RecipeError(
            f"placement.tp_size is {recipe.placement.tp_size}: the score head of a reward model "
            "cannot be cut; set 1"
        )
    if recipe.placement.ep_size > 1:
        raise RecipeError(
            f"placement.ep_size is {recipe.placement.ep_size}: the experts of a reward model are "
            "not dealt out; set 1"
        )


def check_serves_answers(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Refuse algorithms that do not learn from given answers. Raises: RecipeError."""
    if not isinstance(algorithm, Sft):
        raise RecipeError(
            f"algorithm {named(recipe)} learns from samples or pairs, domain {recipe.domain} has "
            "given answers; use sft"
        )


def check_serves_steps(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Refuse algorithms that need inputs that a rollout of denoising steps, or the recipe, does not
    provide.

    Raises: RecipeError.
    """
    name = named(recipe)
    if not isinstance(algorithm, FlowPolicyGradient | DiffusionNft | FlowSft):
        raise RecipeError(
            f"algorithm {name} trains tokens, domain diffusion has denoising steps; use "
            "flow_grpo, mix_grpo, dance_grpo, flow_dppo or diffusion_nft (or flow_sft, for given "
            "pictures)"
        )
    if not recipe.rewards:
        raise RecipeError(
            "rewards: the domain diffusion has no environments; name at least one scorer"
        )
    _check_average(algorithm, recipe)
    _check_correction(algorithm, recipe)
    _check_parts(algorithm, name)
    _check_whole_and_unpacked(recipe, "diffusion model")
    if isinstance(algorithm, FlowSft):
        _check_given_pictures(recipe)
        return
    if isinstance(algorithm, FlowPolicyGradient):
        _check_actions(algorithm, recipe)
    elif recipe.diffusion.share_noise:
        raise RecipeError(
            f"diffusion.share_noise: algorithm {name} draws noise at the start only, so that all "
            "samples of a prompt would be one; set false"
        )


def _check_given_pictures(recipe: Recipe) -> None:
    """Raises: RecipeError where pictures would be sampled for training."""
    for key, value, fitting in (
        ("rollout.samples_per_prompt", recipe.rollout.samples_per_prompt, 1),
        ("rollout.engine", recipe.rollout.engine, EngineKind.IN_PROCESS),
        ("diffusion.num_frames", recipe.diffusion.num_frames, 1),
    ):
        if value != fitting:
            raise RecipeError(
                f"{key} is {value}: algorithm flow_sft learns the one picture of each row; set "
                f"{fitting}"
            )


def check_serves_agents(algorithm: StageAlgorithm, env_id: str) -> None:
    """Refuse algorithms that need a row for each sample, since an episode of an agent may be
    several rows.

    Raises: RecipeError.
    """
    for needed, what in (
        (algorithm.needs_greedy_baseline, "a greedy reply to compare each sample with"),
        (algorithm.dynamic_sampling, "groups of a fixed number of rows (dynamic sampling)"),
        (algorithm.needs_teacher, "a teacher of its samples"),
    ):
        if needed:
            raise RecipeError(
                f"environments.{env_id} is an agent, whose episodes may be split into several "
                f"rows; the recipe's algorithm needs {what}; use grpo without it"
            )


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
        (algorithm.needs_teacher, "a teacher of its samples"),
    ):
        if needed:
            raise RecipeError(
                f"algorithm {named(recipe)} needs {what}, which the domain {recipe.domain} does "
                "not have; use grpo"
            )
    if recipe.diffusion.num_frames > 1:
        raise RecipeError(
            f"diffusion.num_frames is {recipe.diffusion.num_frames}: the domain {recipe.domain} "
            "draws pictures; set 1"
        )


def check_multi_update(
    algorithm: StageAlgorithm, num_updates_per_batch: int, num_epochs: int, name: str | None = None
) -> None:
    """Refuse several updates per rollout with an algorithm that assumes the policy of the rollout.

    Args: name: name of the algorithm in the message; its class's name when unset. Raises:
    RecipeError.
    """
    if algorithm.supports_multi_update:
        return
    for key, value in (
        ("num_updates_per_batch", num_updates_per_batch),
        ("num_epochs", num_epochs),
    ):
        if value > 1:
            raise RecipeError(
                f"training.{key} is {value}, but algorithm {name or type(algorithm).__name__} "
                "does not correct for the policy having moved since the rollout: set 1, or use "
                "an algorithm that does"
            )


def check_group_size(recipe: Recipe) -> None:
    """Refuse a recipe whose rows would be compared with siblings that they do not have: all
    advantages would be 0.

    Raises: RecipeError naming the key that sets the group's size.
    """
    if recipe.has_pairs:
        return
    for track in learning_tracks(recipe):
        if track.group_size > 1 or not track.algorithm.needs_siblings:
            continue
        draws = track.prefix == "images/" or not recipe.domain.traits.samples_tokens
        other = "" if draws else f", or use one that does not, such as {WITHOUT_GROUPS}"
        raise RecipeError(
            f"{track.size_key} is 1: algorithm {named(recipe.images if draws else recipe)} "
            "compares each sample with others of its prompt, and one alone teaches nothing; set "
            f"2 or more{other}"
        )


def named(recipe: Recipe) -> str | None:
    """Return the algorithm's name in the recipe."""
    return recipe.algorithm.get("name") or recipe.algorithm.get("target")


def _check_average(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Raises: RecipeError where an algorithm samples with a moving average that the recipe does not
    keep, or the recipe with one that the algorithm leaves out."""
    samples_average = recipe.ema is not None and recipe.ema.rollout
    if isinstance(algorithm, DiffusionNft) and samples_average and not algorithm.rolls_out_average:
        raise RecipeError(
            "algorithm.old_policy is current, but the recipe's moving average has rollout: true; "
            "leave out one of them"
        )
    if algorithm.rolls_out_average and not samples_average:
        raise RecipeError(
            f"algorithm {named(recipe)} samples with the moving average: set ema_lora: "
            "{rollout: true}, or ema_full: {mirror: true, rollout: true}; or "
            "algorithm.old_policy: current"
        )


def _check_correction(algorithm: StageAlgorithm, recipe: Recipe) -> None:
    """Raises: RecipeError where samples of older weights would be trained as if they were of the
    present ones, or groups carried over to steps of which nobody knows which is the last."""
    rollout = recipe.rollout
    if rollout.carry_over and algorithm.dynamic_sampling:
        raise RecipeError(
            f"rollout.carry_over: {rollout.carry_over}: algorithm {named(recipe)} samples further "
            "rollouts in a step (dynamic_sampling); leave out one of them"
        )
    if algorithm.needs_rollout_log_probs:
        return
    for key, value in (("steps_ahead", rollout.steps_ahead), ("carry_over", rollout.carry_over)):
        if value:
            raise RecipeError(
                f"rollout.{key}: {value} trains on samples of older weights, which algorithm "
                f"{named(recipe)} does not correct for: set algorithm.correction, for example "
                f"{{level: token, upper: 2.0}}, or {key}: 0"
            )


def _check_whole_and_unpacked(recipe: Recipe, what: str) -> None:
    """Raises: RecipeError where the placement cuts or packs a model of a kind (`what`) that takes
    neither."""
    placed = recipe.placement
    for name, value, fitting in (
        ("tp_size", placed.tp_size, 1),
        ("sp_size", placed.sp_size, 1),
        ("ep_size", placed.ep_size, 1),
        ("max_tokens_per_micro_batch", placed.max_tokens_per_micro_batch, None),
    ):
        if value != fitting:
            said = "null" if fitting is None else fitting
            raise RecipeError(
                f"placement.{name} is {value}: a {what} is neither cut over ranks nor packed; "
                f"set placement.{name} to {said}"
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
        raise RecipeError(
            f"algorithm.{error}; diffusion.num_steps is {config.num_steps}"
        ) from error
    size = config.steps_per_forward
    if size is None or size >= num_actions:
        return
    if num_actions % size:
        raise RecipeError(
            f"diffusion.steps_per_forward {size} does not divide the {num_actions} trained steps "
            "of a rollout"
        )
    aggregation = algorithm.policy_loss.config.aggregation
    if aggregation not in SPLITS:
        raise RecipeError(
            f"diffusion.steps_per_forward {size} cuts rows, which algorithm.loss.aggregation "
            f"{aggregation} weighs whole; use token-mean, or leave it out"
        )
