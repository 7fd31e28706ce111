"""Noise levels of a recipe, the same for sampling and scoring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl_core.models.diffusion.base import DiffusionFamily, Size
from rl_core.sde import sigmas
from schemas.sections.diffusion import DiffusionConfig

if TYPE_CHECKING:
    from torch import Tensor


def size_of(config: DiffusionConfig) -> Size:
    """Return the size of samples."""
    return Size(config.height, config.width, config.num_frames)


def noise_levels(family: DiffusionFamily, config: DiffusionConfig, num_steps: int) -> Tensor:
    """Return sigma from 1 to 0, [num_steps + 1], by the recipe's shift or the model's own."""
    return sigmas(num_steps, shift_of(family, config, num_steps))


def shift_of(family: DiffusionFamily, config: DiffusionConfig, num_steps: int) -> float:
    """Return the shift of the schedule."""
    if config.shift is None:
        return family.shift(size_of(config), num_steps)
    return config.shift
