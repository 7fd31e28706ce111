"""Checks that a recipe's teachers can judge what it samples, before any start."""

from __future__ import annotations

from rl_core.algorithms.distillation import DistillationConfig, Vocabulary
from rl_core.algorithms.teacher import OwnWeights, TeacherConfig
from rl_core.errors import RecipeError
from schemas.domains import ModelKind
from schemas.recipe import EmaFullConfig, Recipe


def check_teachers(config: DistillationConfig, recipe: Recipe, name: str | None) -> None:
    """Refuse teachers that the recipe's rollouts, weights or ranks cannot serve.

    Raises: RecipeError naming the key and what would be right.
    """
    if not config.named_teachers:
        raise RecipeError(
            f"algorithm {name} learns from a teacher, and none is named: set algorithm.teacher, "
            "for example {path: my-folder}, {url: ..., model: ...} or {own: base, hint: ...}"
        )
    if not recipe.rollout.keeps_all:
        key = next(iter([*recipe.rollout.leaves_out, "repetition_penalty"]))
        raise RecipeError(
            f"rollout.{key}: a teacher judges tokens that were drawn from the "
            f"policy's whole distribution; leave it out with algorithm {name}"
        )
    if config.vocabulary is not Vocabulary.SAMPLED:
        for key in ("tp_size", "sp_size"):
            if getattr(recipe.placement, key) > 1:
                raise RecipeError(
                    f"placement.{key}: distributions are compared on ranks that have the whole "
                    "vocabulary; set 1, or algorithm.vocabulary: sampled"
                )
    for key, teacher in config.named_teachers.items():
        _check_own(f"algorithm.{key}", teacher, recipe)
        _check_served(f"algorithm.{key}", teacher, config, recipe)
        if teacher.hint is not None and recipe.domain.traits.model is ModelKind.SEEING:
            raise RecipeError(
                f"algorithm.{key}.hint: prompts with pictures cannot be put to a teacher in other "
                "words; leave it out, or use domain: text"
            )


def _check_own(key: str, teacher: TeacherConfig, recipe: Recipe) -> None:
    if teacher.own is None:
        return
    if teacher.own is OwnWeights.BASE and teacher.hint is None:
        raise RecipeError(
            f"{key}: the weights before training say of the policy's own prompt what it says "
            "itself; give the teacher a hint, or another model"
        )
    average = recipe.ema
    can_be_read = not isinstance(average, EmaFullConfig) or average.mirror
    if teacher.own is OwnWeights.AVERAGE and (average is None or not can_be_read):
        raise RecipeError(
            f"{key}.own: average needs a moving average that can be read: set ema_lora: {{}}, or "
            "ema_full: {mirror: true}"
        )


def _check_served(
    key: str, teacher: TeacherConfig, config: DistillationConfig, recipe: Recipe
) -> None:
    if teacher.url is None:
        return
    if config.vocabulary is not Vocabulary.SAMPLED:
        raise RecipeError(
            f"{key}.url: a server gives the log-probabilities of the tokens that it is sent; set "
            "algorithm.vocabulary: sampled and divergence: reverse_kl, or give the teacher's path"
        )
    if recipe.rollout.temperature != 1:
        raise RecipeError(
            f"{key}.url: a server's log-probabilities are those of temperature 1; set "
            f"rollout.temperature to 1, got {recipe.rollout.temperature:g}"
        )
    if recipe.domain.traits.model is ModelKind.SEEING:
        raise RecipeError(
            f"{key}.url: tokens of pictures mean nothing to a server; give the teacher's path"
        )
