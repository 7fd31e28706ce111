"""Classifier-free guidance (arXiv 2207.12598), the same in rollout, replay and evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.models.diffusion.base import Condition, DiffusionFamily

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PromptConditions:
    """Conditions of the transformer for one prompt: one object shared by all its samples."""

    positive: Condition
    negative: Condition | None
    """Condition of the negative prompt; None without guidance."""

    @property
    def unguided(self) -> Condition:
        """The negative condition. Raises: ValueError when there is none."""
        if self.negative is None:
            raise ValueError(
                "guidance needs the condition of a negative prompt; encode the prompts with one"
            )
        return self.negative


def has_two_halves(family: DiffusionFamily, scale: float) -> bool:
    """Return True if each velocity needs a second one without the prompt.

    Up to a scale of 1 diffusers leaves it out, and a model that reads the scale needs none.
    """
    return scale > 1 and not family.embedded_guidance


def guided(family: DiffusionFamily, velocity: Tensor, scale: float) -> Tensor:
    """Return [N, ...] from the velocities of both halves, [2N, ...], the negative one first."""
    negative, positive = velocity.chunk(2)
    return family.guide(positive, negative, scale)
