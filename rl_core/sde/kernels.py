"""One denoising step as an action: sample, mean, std and log-probability.

Notation: x the sample at sigma, v the predicted velocity (eps - x_0), sigma' the next level, dt =
sigma' - sigma < 0. Latents are [B, ...] of any rank: images 4-D, video 5-D. All maths is in float32
(float64 stays), whatever the model computes in. A log-probability is the MEAN over latent
dimensions of the Gaussian log-density, so that its scale, and with it the clip range, does not
depend on resolution.

Every kernel either draws the next sample from `generator` or scores the given `next_sample`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

    Generators = Generator | Sequence[Generator] | None
    """Random generator for all rows, or one per row, so that a sample does not depend on the others
    in its batch."""


@dataclass(frozen=True)
class Step:
    """Result of one step."""

    sample: Tensor
    """The next sample, drawn or given, [B, ...]."""
    mean: Tensor
    """Mean of the next sample, with gradient through the velocity, [B, ...]."""
    std: Tensor
    """Standard deviation of the next sample, [B]; 0 for a deterministic step."""
    log_prob: Tensor | None
    """Log-probability of the next sample, with gradient, [B]; None for a deterministic step."""


def flow_step(
    x: Tensor,
    v: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    eta: float,
    sigma_first: float | Tensor,
    generator: Generators = None,
    next_sample: Tensor | None = None,
) -> Step:
    """Take a step of Flow-GRPO (arXiv 2505.05470 eq. 9): a = eta sqrt(sigma / (1 - sigma)),
    infinite at sigma = 1.

    There the denominator is that of the schedule's second level, sigma_first, as in the authors'
    code: a = eta / sqrt(1 - sigma_first).

    mean = x (1 + a^2 dt / (2 sigma)) + v (1 + a^2 (1 - sigma) / (2 sigma)) dt; std = a sqrt(-dt).
    """
    x, v, sigma_B, next_B = _prepare(x, v, sigma, sigma_next)
    clean_B = 1 - sigma_B.where(sigma_B < 1, _levels(sigma_first, x))
    return _sde_step(
        x, v, sigma_B, next_B, eta * (sigma_B / clean_B).sqrt(), generator, next_sample
    )


def dance_step(
    x: Tensor,
    v: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    eta: float,
    generator: Generators = None,
    next_sample: Tensor | None = None,
) -> Step:
    """Take a step of DanceGRPO (arXiv 2505.07818 eq. 8): `flow_step` with constant noise, a =
    eta."""
    x, v, sigma_B, next_B = _prepare(x, v, sigma, sigma_next)
    return _sde_step(
        x, v, sigma_B, next_B, sigma_B.new_full(sigma_B.shape, eta), generator, next_sample
    )


def cps_step(
    x: Tensor,
    v: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    eta: float,
    generator: Generators = None,
    next_sample: Tensor | None = None,
) -> Step:
    """Take a step of coefficients-preserving sampling (arXiv 2509.05952), after which the noise
    level is exactly sigma'.

    std = sigma' sin(eta pi/2); mean = (x - sigma v)(1 - sigma') + (x + (1 - sigma) v) sqrt(sigma'^2
    - std^2). The last step, to sigma' = 0, is deterministic.
    """
    x, v, sigma_B, next_B = _prepare(x, v, sigma, sigma_next)
    angle = eta * math.pi / 2
    level, level_next = _spread(sigma_B, x), _spread(next_B, x)
    mean = (x - level * v) * (1 - level_next) + (x + (1 - level) * v) * (
        level_next * math.cos(angle)
    )
    return finish(mean, next_B * math.sin(angle), generator, next_sample)


def euler_step(
    x: Tensor,
    v: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    next_sample: Tensor | None = None,
) -> Step:
    """Take a deterministic Euler step, x + v dt. Raises: ValueError when a next sample is to be
    scored."""
    x, v, sigma_B, next_B = _prepare(x, v, sigma, sigma_next)
    return finish(
        x + v * _spread(next_B - sigma_B, x), sigma_B.new_zeros(sigma_B.shape), None, next_sample
    )


def gaussian_log_prob(sample: Tensor, mean: Tensor, std_B: Tensor) -> Tensor:
    """Return the mean over latent dimensions of log N(sample; mean, std^2), [B]."""
    distance_B = ((sample - mean) / _spread(std_B, mean)).square().flatten(1).mean(1)
    return -0.5 * distance_B - std_B.log() - 0.5 * math.log(2 * math.pi)


def gaussian_kl(mean: Tensor, other_mean: Tensor, std_B: Tensor) -> Tensor:
    """Return the KL of N(mean, std^2) and N(other_mean, std^2) per latent dimension, [B]: the mean
    of (mu - mu')^2 / (2 std^2)."""
    return ((mean - other_mean) / _spread(std_B, mean)).square().flatten(1).mean(1) / 2


def finish(mean: Tensor, std_B: Tensor, generator: Generators, next_sample: Tensor | None) -> Step:
    """Return the step with that mean and std, drawn or scored. Raises: ValueError when a
    deterministic one is to be scored."""

    deterministic = bool((std_B == 0).any())
    if next_sample is not None:
        if deterministic:
            raise ValueError(
                "a step with std 0 has no log-probability; leave it out of the stochastic steps"
            )
        sample = next_sample.to(mean)
    elif deterministic and bool((std_B != 0).any()):
        raise ValueError(
            f"the rows of one step must all be stochastic or none; std {std_B.tolist()}"
        )
    elif deterministic:
        return Step(mean, mean, std_B, None)
    else:
        sample = (mean + _spread(std_B, mean) * _noise(mean, generator)).detach()
    return Step(sample, mean, std_B, gaussian_log_prob(sample, mean, std_B))


def _noise(like: Tensor, generator: Generators) -> Tensor:
    """Draw noise on the generator's own device, so that a seed gives the same sample everywhere."""
    import torch

    if isinstance(generator, Sequence):
        rows = []
        for one in generator:
            rows.append(torch.randn(like.shape[1:], generator=one, device=one.device))
        return torch.stack(rows).to(like)
    device = generator.device if generator is not None else like.device
    return torch.randn(like.shape, generator=generator, dtype=torch.float32, device=device).to(like)


def _sde_step(
    x: Tensor,
    v: Tensor,
    sigma_B: Tensor,
    next_B: Tensor,
    noise_B: Tensor,
    generator: Generators,
    next_sample: Tensor | None,
) -> Step:
    """Take one Euler-Maruyama step of the SDE with noise a and the flow's marginals."""
    dt_B = next_B - sigma_B
    half_B = noise_B.square() / (2 * sigma_B)
    mean = x * _spread(1 + half_B * dt_B, x) + v * _spread((1 + half_B * (1 - sigma_B)) * dt_B, x)
    return finish(mean, noise_B * (-dt_B).sqrt(), generator, next_sample)


def _prepare(
    x: Tensor, v: Tensor, sigma: float | Tensor, sigma_next: float | Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from rl_core.sde.precision import at_least_float32

    x, v = at_least_float32(x), at_least_float32(v)
    if x.shape != v.shape:
        raise ValueError(
            f"sample and velocity must have one shape, got {tuple(x.shape)} and {tuple(v.shape)}"
        )
    sigma_B, next_B = _levels(sigma, x), _levels(sigma_next, x)
    if bool((next_B >= sigma_B).any()):
        raise ValueError(
            f"sigma must fall with every step, got {sigma_B.tolist()} to {next_B.tolist()}"
        )
    return x, v, sigma_B, next_B


def _levels(sigma: float | Tensor, x: Tensor) -> Tensor:
    """Return a level per row, [B]."""
    import torch

    return torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(x.shape[0])


def _spread(values_B: Tensor, like: Tensor) -> Tensor:
    return values_B.view(-1, *[1] * (like.ndim - 1))
