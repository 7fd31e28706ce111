"""What trainers of every domain wire alike: the backend of a policy, and how a stack takes its updates."""

from __future__ import annotations

from typing import Any

from rl_core.algorithms import algorithms
from rl_core.algorithms.base import StageAlgorithm
from rl_core.distributed import Remote, remote
from rl_core.train.fsdp import FSDPBackend
from schemas.recipe import Recipe


def wire_algorithm(recipe: Recipe) -> tuple[StageAlgorithm, Remote]:
    """The driver's algorithm, and the ranks' copies."""
    algorithm_cls, settings = algorithms.resolve(recipe.algorithm, "algorithm")
    return algorithm_cls(settings), remote(algorithm_cls, settings)


def wire_backend(recipe: Recipe, bundle: Remote, total_steps: int, *, with_reference: bool) -> Remote:
    """The policy's FSDPBackend. Args: total_steps: turns of the loop."""
    return remote(
        FSDPBackend,
        bundle,
        recipe.fsdp,
        recipe.optimizer,
        recipe.scheduler,
        recipe.lora,
        total_steps=total_steps * recipe.updates_per_step,
        seed=recipe.seed,
        with_reference=with_reference,
        ema_cfg=recipe.ema,
    )


def stack_options(recipe: Recipe) -> dict[str, Any]:
    """Keyword arguments that every stack takes."""
    return {
        "micro_batch_size": recipe.placement.micro_batch_size,
        "num_updates_per_batch": recipe.training.num_updates_per_batch,
        "num_epochs": recipe.training.num_epochs,
        "max_grad_norm": recipe.training.max_grad_norm,
        "skip_zero_advantages": recipe.training.skip_zero_advantages,
    }
