"""Division by a standard deviation, with explicit conventions where published versions differ."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic import Field

from rl_core.algorithms.advantages.base import AdvantageEstimator

if TYPE_CHECKING:
    from torch import Tensor


class StdScope(StrEnum):
    """Rows over which the standard deviation is computed."""

    GROUP = "group"
    """The row's own group (GRPO)."""
    BATCH = "batch"
    """All rows (Flow-GRPO and other diffusion recipes)."""


class ScaledConfig(AdvantageEstimator.Config):
    """Conventions of the standard deviation and of the division by it."""

    unbiased: bool = True
    """Standard deviation over n - 1 instead of n."""
    eps: float = Field(default=1e-6, ge=0)
    """Small constant in the denominator."""
    eps_in_root: bool = False
    """Divide by sqrt(variance + eps) instead of sqrt(variance) + eps."""


def over_std(values: Tensor, variance: Tensor, eps: float, eps_in_root: bool) -> Tensor:
    """Return values / (sqrt(variance) + eps), or values / sqrt(variance + eps); 0 where the
    variance is 0."""
    constant = variance == 0
    # Where the variance is 0 the values are too; dividing by 1 keeps eps = 0 from making that 0/0.
    variance = variance.masked_fill(constant, 1.0)
    divisor = (variance + eps).sqrt() if eps_in_root else variance.sqrt() + eps
    return (values / divisor).masked_fill(constant, 0.0)


def whiten(
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    unbiased: bool = True,
    eps: float = 1e-8,
    eps_in_root: bool = True,
) -> Tensor:
    """Scale to mean 0 and variance 1 over all elements where the mask is not 0, [B, T]; 0
    elsewhere, and where all are equal."""
    kept_BT = mask_BT != 0
    count = kept_BT.sum().clamp(min=1)
    values_BT = values_BT.masked_fill(~kept_BT, 0.0)
    centred_BT = (values_BT - values_BT.sum() / count).masked_fill(~kept_BT, 0.0)
    variance = centred_BT.square().sum() / (count - int(unbiased)).clamp(min=1)
    return over_std(centred_BT, variance, eps, eps_in_root)


def whiten_rows(
    values_B: Tensor,
    lengths_B: Tensor,
    *,
    unbiased: bool = True,
    eps: float = 1e-8,
    eps_in_root: bool = True,
) -> Tensor:
    """Scale as `whiten` does where every action of a row has the row's value, [B]; 0 where all are
    equal. Args: lengths_B: number of actions of each row."""
    count = lengths_B.sum().clamp(min=1)
    centred_B = values_B - (lengths_B * values_B).sum() / count
    variance = (lengths_B * centred_B.square()).sum() / (count - int(unbiased)).clamp(min=1)
    return over_std(centred_B, variance, eps, eps_in_root)
