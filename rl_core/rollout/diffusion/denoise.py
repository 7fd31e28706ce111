"""The sampling loop of a flow model, from noise to samples, keeping the steps that are actions.

Shapes: B samples, each a latent [C, (F,) H, W]; K actions of a trajectory of T steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Generator, Tensor

from rl_core.sde import Kernel, SdeConfig, action_step, dpm2_step, euler_step
from rl_core.sde.solvers import Previous

VelocityOf = Callable[[Tensor, Tensor], Tensor]
"""Function from latents [B, ...] and levels [B] to velocities."""


@dataclass
class Trajectory:
    """Result of denoising a batch."""

    clean: Tensor
    """Final latents, [B, ...]."""
    latents: list[Tensor] = field(default_factory=list)
    """Latents before each action, [B, ...], on the CPU."""
    next_latents: list[Tensor] = field(default_factory=list)
    log_probs: list[Tensor] = field(default_factory=list)
    """Log-probabilities of the actions, [B] each, on the CPU."""

    def rows(self) -> list[Trajectory]:
        """Return the trajectory of each sample, as a batch of one."""
        kept = (self.latents, self.next_latents, self.log_probs)
        trajectories: list[Trajectory] = []
        for row in range(len(self.clean)):
            of_row = []
            for column in kept:
                of_row.append([one[row : row + 1] for one in column])
            trajectories.append(Trajectory(self.clean[row : row + 1], *of_row))
        return trajectories


def denoise(
    velocity_of: VelocityOf,
    noise: Tensor,
    levels: Tensor,
    sde: SdeConfig,
    actions: Sequence[int],
    generators: Sequence[Generator],
) -> Trajectory:
    """Follow the flow from noise to samples.

    Args: noise: [B, ...] at the first level. levels: [T + 1], falling from 1 to 0. actions:
    positions of the steps that draw noise, by `sde.kernel`; all others follow `sde.ode`.
    generators: one per sample, for the noise of its steps.
    """
    x, previous, found = noise, None, Trajectory(noise)
    sigmas = levels.tolist()
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        v = velocity_of(x, torch.full((len(x),), sigma, device=x.device))
        if step in actions:
            taken = action_step(
                sde, x, v, sigma, sigma_next, sigma_first=sigmas[1], generator=generators
            )
            if taken.log_prob is None:
                raise ValueError(
                    f"step {step}, from sigma {sigma} to {sigma_next}, draws no noise: it is no "
                    "action"
                )
            found.latents.append(x.cpu())
            found.next_latents.append(taken.sample.cpu())
            found.log_probs.append(taken.log_prob.cpu())
            x, previous = taken.sample, None
        else:
            x, previous = _follow(sde.ode, x, v, sigma, sigma_next, previous)
    found.clean = x
    return found


def _follow(
    ode: Kernel, x: Tensor, v: Tensor, sigma: float, sigma_next: float, previous: Previous | None
) -> tuple[Tensor, Previous | None]:
    if ode is Kernel.DPM2:
        taken, previous = dpm2_step(x, v, sigma, sigma_next, previous=previous)
        return taken.sample, previous
    return euler_step(x, v, sigma, sigma_next).sample, None
