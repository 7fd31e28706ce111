"""Results of a flow-matching policy on probe inputs, by which two copies of it are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_core.errors import ModelError
from rl_core.models.diffusion.base import DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import ConditionImages
from rl_core.models.diffusion.guidance import PromptConditions
from rl_core.models.diffusion.policy import DiffusionPolicy, Noisy

if TYPE_CHECKING:
    from PIL.Image import Image

PROMPT = "a red square beside a blue circle"
LEVELS = (0.95, 0.6, 0.1)
"""Noise levels of the probe, on both sides of the boundary of two experts."""
SIDES = (16, 32, 64, 128, 256, 512, 1024)
FRAMES = (1, 5, 9, 17)
"""Numbers of frames to try; the smallest that a model supports is used."""


@torch.no_grad()
def velocities(family: DiffusionFamily, policy: DiffusionPolicy, device: torch.device) -> Tensor:
    """Return the velocities, [N], float32 on the CPU. Raises: ModelError when the model supports no
    usual size."""
    size = _smallest(family)
    image: Image | None = None
    if family.condition_images is ConditionImages.REQUIRED:
        from PIL import Image as Pictures

        image = Pictures.new("RGB", (size.width, size.height), "grey")
    told = PromptConditions(family.encode([PROMPT], [image], size)[0], None)
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(len(LEVELS), *family.latent_shape(size), generator=generator)
    conditions = policy.conditions_of([told], len(LEVELS), 1.0)
    noisy = Noisy(
        latents.to(device),
        torch.tensor(LEVELS, device=device),
        {name: value.to(device) for name, value in conditions.items()},
    )
    return policy(noisy, 1.0).float().cpu().flatten()


def _smallest(family: DiffusionFamily) -> Size:
    for frames in FRAMES:
        for side in SIDES:
            size = Size(side, side, frames)
            try:
                family.latent_shape(size)
            except ModelError:
                continue
            return size
    raise ModelError(
        f"{family.name}: makes no square of {SIDES[0]} to {SIDES[-1]} pixels, on which copies "
        "are compared"
    )
