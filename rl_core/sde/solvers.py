"""DPM-Solver++ of second order, multistep (arXiv 2211.01095 alg. 2), for flows: the deterministic
part of a rollout.

It works on predictions of the clean sample, D = x - sigma v. With alpha = 1 - sigma and lambda =
log(alpha / sigma): x' = (sigma'/sigma) x + (alpha' - alpha sigma'/sigma) D*, where D* extrapolates
from this step's D and the one before, D* = D + (D - D_before) h / (2 h_before), h the steps in
lambda. The first step, and one from or to an infinite lambda, is of first order, which for flows is
Euler's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.sde.kernels import Step, finish

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Previous:
    """State that a multistep solver keeps of the step before."""

    clean: Tensor
    """Predicted clean sample."""
    sigma: float
    """Level at which it was predicted."""


def dpm2_step(
    x: Tensor,
    v: Tensor,
    sigma: float,
    sigma_next: float,
    *,
    previous: Previous | None = None,
    next_sample: Tensor | None = None,
) -> tuple[Step, Previous]:
    """Take one step; return it and the state for the next one. All rows share a level.

    Args: previous: state of the step before; None for the first. Raises: ValueError when a next
    sample is to be scored: the step is deterministic and has no log-probability.
    """
    from rl_core.sde.precision import at_least_float32

    x, v = at_least_float32(x), at_least_float32(v)
    clean = x - sigma * v
    target = clean
    if previous is not None and sigma_next > 0 and previous.sigma < 1:
        step = _log_ratio(sigma_next) - _log_ratio(sigma)
        step_before = _log_ratio(sigma) - _log_ratio(previous.sigma)
        target = clean + (clean - previous.clean) * (step / (2 * step_before))
    shrink = sigma_next / sigma
    mean = shrink * x + ((1 - sigma_next) - (1 - sigma) * shrink) * target
    return finish(mean, mean.new_zeros(len(mean)), None, next_sample), Previous(clean, sigma)


def _log_ratio(sigma: float) -> float:
    return math.log((1 - sigma) / sigma)
