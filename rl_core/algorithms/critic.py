"""The critic of PPO: its targets, and its clipped loss (arXiv 1707.06347 sec. 5; 2005.12729)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rl_core.algorithms import terms
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.terms import Aggregation, Denominators
from schemas.sections.section import Section

if TYPE_CHECKING:
    from torch import Tensor


class CriticConfig(Section):
    """Loss of the critic."""

    value_clip: float | None = Field(default=0.5, gt=0)
    """Largest change of a value from its value at rollout; null turns the clip off."""
    loss_coef: float = Field(default=0.5, ge=0)
    """Weight of the value loss."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    """Aggregation of the losses of single actions."""


def value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    denominators: Denominators,
    config: CriticConfig,
) -> tuple[Tensor, dict[str, Metric]]:
    """Return loss_coef * 1/2 max((V - G)^2, (clip(V, V_old +- value_clip) - G)^2), aggregated like
    a policy loss.

    Args: values_BT: values of the current critic, with gradient. old_values_BT: values at rollout.
    returns_BT: A + V_old, from `StageAlgorithm.returns`. denominators: counts of the whole step.
    Returns: this micro-batch's share, a scalar, and metrics that merge exactly.
    """
    kept_BT = mask_BT != 0
    values_BT, old_values_BT, returns_BT = (
        terms.cleaned(tensor, mask_BT)
        for tensor in (values_BT, old_values_BT.detach(), returns_BT.detach())
    )
    errors_BT = (values_BT - returns_BT).square()
    clipped_BT = errors_BT.new_zeros(errors_BT.shape).bool()
    losses_BT = errors_BT
    if config.value_clip is not None:
        moved_BT = (values_BT - old_values_BT).clamp(-config.value_clip, config.value_clip)
        held_BT = (old_values_BT + moved_BT - returns_BT).square()
        clipped_BT, losses_BT = held_BT > errors_BT, errors_BT.maximum(held_BT)
    loss = config.loss_coef * terms.aggregate(
        0.5 * losses_BT, mask_BT, config.aggregation, denominators
    )
    count = float(kept_BT.sum())
    return loss, {
        "value_loss": Metric(MetricKind.SUM, float(loss.detach()), count),
        "value_error": Metric(MetricKind.MEAN, float(errors_BT.detach().double().sum()), count),
        "value_clip_fraction": Metric(MetricKind.MEAN, float((clipped_BT & kept_BT).sum()), count),
        "value_mean": Metric(MetricKind.MEAN, float(values_BT.detach().double().sum()), count),
    }
