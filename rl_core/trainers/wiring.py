"""What trainers of every domain wire alike: the backend of a policy, and how a stack takes its updates."""

from __future__ import annotations

from typing import Any

from rl_core.algorithms import algorithms
from rl_core.algorithms.base import StageAlgorithm
from rl_core.distributed import Remote, remote
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.segments import check_multi_update
from schemas.recipe import Recipe


def wire_algorithm(recipe: Recipe) -> tuple[StageAlgorithm, Remote]:
    """The driver's algorithm, and the ranks' copies. Raises: RecipeError where it cannot update as often as asked."""
    algorithm_cls, settings = algorithms.resolve(recipe.algorithm, "algorithm")
    own = algorithm_cls(settings)
    check_multi_update(own, recipe.training.num_updates_per_batch)
    return own, remote(algorithm_cls, settings)


def wire_backend(recipe: Recipe, bundle: Remote, total_steps: int, *, with_reference: bool) -> Remote:
    """The policy's FSDPBackend. Args: total_steps: turns of the loop."""
    return remote(
        FSDPBackend,
        bundle,
        recipe.fsdp,
        recipe.optimizer,
        recipe.scheduler,
        recipe.lora,
        total_steps=total_steps * updates_per_step(recipe),
        seed=recipe.seed,
        with_reference=with_reference,
        ema_cfg=recipe.ema,
    )


def updates_per_step(recipe: Recipe) -> int:
    """Optimiser steps that one turn of the loop takes."""
    return recipe.training.num_mini_batches * recipe.training.num_updates_per_batch


def stack_options(recipe: Recipe) -> dict[str, Any]:
    """Keyword arguments that every stack takes."""
    return {
        "micro_batch_size": recipe.placement.micro_batch_size,
        "num_mini_batches": recipe.training.num_mini_batches,
        "num_updates_per_batch": recipe.training.num_updates_per_batch,
        "max_grad_norm": recipe.training.max_grad_norm,
        "skip_zero_advantages": recipe.training.skip_zero_advantages,
    }
