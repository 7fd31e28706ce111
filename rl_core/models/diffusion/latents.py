"""Conversion of latents to tokens of 2 x 2 patches, and the per-channel scale of VAEs with stated
statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Statistics(Protocol):
    """The part of a VAE's config that says how its latents are distributed."""

    latents_mean: Sequence[float]
    """Mean of each channel."""
    latents_std: Sequence[float]
    """Standard deviation of each channel."""


def packed(latents: Tensor) -> Tensor:
    """Return [B, C, H, W] as tokens [B, H/2 W/2, 4 C]."""
    from torch.nn.functional import pixel_unshuffle

    return pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)


def unpacked(tokens: Tensor, shape: Sequence[int]) -> Tensor:
    """Undo `packed`. Args: shape: [B, C, H, W] of the latents."""
    from torch.nn.functional import pixel_shuffle

    batch, _, height, width = shape
    return pixel_shuffle(tokens.transpose(1, 2).reshape(batch, -1, height // 2, width // 2), 2)


def standardised(latents: Tensor, config: Statistics) -> Tensor:
    """Scale a VAE's latents [B, C, F, H, W] to mean 0 and deviation 1 in each channel, by its
    config's statistics."""
    mean, spread = _statistics(latents, config)
    return (latents - mean) / spread


def unstandardised(latents: Tensor, config: Statistics) -> Tensor:
    """Undo `standardised`."""
    mean, spread = _statistics(latents, config)
    return latents * spread + mean


def _statistics(latents: Tensor, config: Statistics) -> tuple[Tensor, Tensor]:
    mean, spread = (
        latents.new_tensor(values) for values in (config.latents_mean, config.latents_std)
    )
    return mean.view(1, -1, 1, 1, 1), spread.view(1, -1, 1, 1, 1)
