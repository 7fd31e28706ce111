"""Noise levels of a flow: x_sigma = (1 - sigma) x_0 + sigma eps, from 1 (noise) to 0 (image).

diffusers applies the shift a second time to static schedules that are passed to it: pass
`sigmas(...)` once, as the pipeline's `sigmas`, with a scheduler whose own shift is 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def sigmas(num_steps: int, shift: float = 1.0) -> Tensor:
    """Return shift t / (1 + (shift - 1) t) for t = 1 .. 0, [num_steps + 1] in float32 (SD3, arXiv
    2403.03206 eq. 23).

    Raises: ValueError on num_steps < 1 or shift <= 0.
    """
    import torch

    if num_steps < 1 or shift <= 0:
        raise ValueError(
            f"num_steps must be at least 1 and shift above 0, got {num_steps} and {shift}"
        )
    times = torch.linspace(1.0, 0.0, num_steps + 1, dtype=torch.float64)
    return (shift * times / (1.0 + (shift - 1.0) * times)).float()


def dynamic_shift(
    num_tokens: int,
    *,
    base_tokens: int = 256,
    max_tokens: int = 4096,
    base_shift: float = 0.5,
    max_shift: float = 1.15,
    exponential: bool = True,
) -> float:
    """Return the shift for an image of `num_tokens` latent tokens: mu, linear in the tokens, or
    e^mu (FLUX, SD3.5).

    Larger images need more noise to hide them. The defaults are those of the published schedulers.
    """
    slope = (max_shift - base_shift) / (max_tokens - base_tokens)
    mu = base_shift + slope * (num_tokens - base_tokens)
    return math.exp(mu) if exponential else mu
