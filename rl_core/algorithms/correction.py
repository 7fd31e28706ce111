"""Rollout correction for the differences between the log-probabilities of the sampling engine and
the trainer.

With D = log pi_old - log pi_rollout the loss of an action is weighted by w = exp(D), computed per
action, per row (the product over its actions) or per row as a geometric mean. `truncate` caps w
(TIS, fengyao.notion.site/off-policy-rl); `mask` drops actions outside a range (IcePop, arXiv
2510.18855). Rows or actions can also be rejected by an estimate of KL(rollout, trainer): k1 = -D,
k2 = D^2/2, k3 = min(e^D - D - 1, 10). Dropped actions still count in the denominators.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from rl_core.algorithms import terms
from rl_core.algorithms.terms import KlKind
from schemas.sections.section import Section

if TYPE_CHECKING:
    from torch import Tensor


class CorrectionLevel(StrEnum):
    """Unit that has one weight, or is kept or dropped as a whole."""

    TOKEN = "token"
    """Each action has its own weight."""
    SEQUENCE = "sequence"
    """Each row has one weight, by the sum over its actions: unbiased, of high variance."""
    GEOMETRIC = "geometric"
    """Each row has one weight, by the mean over its actions: biased, independent of length."""


class CorrectionMode(StrEnum):
    """Treatment of weights out of bounds."""

    TRUNCATE = "truncate"
    """Set them to the upper bound (TIS)."""
    MASK = "mask"
    """Drop their actions (IcePop)."""


class RejectionConfig(Section):
    """Rejection of actions or rows by their estimated KL."""

    kind: Literal[KlKind.K1, KlKind.K2, KlKind.K3] = KlKind.K3
    """Estimate of KL(rollout, trainer)."""
    level: CorrectionLevel = CorrectionLevel.GEOMETRIC
    """Unit that is rejected as a whole."""
    lower: float | None = None
    """Lower bound of the estimate; only k1 can be negative."""
    upper: float = 1e-3
    """Upper bound of the estimate; k3 of an action, and its mean over a row, is at most 10."""

    @model_validator(mode="after")
    def _bound_can_be_passed(self) -> RejectionConfig:
        per_row_sum = self.level is CorrectionLevel.SEQUENCE
        if self.kind is KlKind.K3 and self.upper >= terms.K3_LIMIT and not per_row_sum:
            raise ValueError(
                f"correction.reject.upper {self.upper} rejects nothing, since k3 is "
                f"{terms.K3_LIMIT:g} at most; use a smaller one, or kind: k2"
            )
        if self.lower is not None and self.lower > self.upper:
            raise ValueError(
                f"correction.reject.lower {self.lower} lies above correction.reject.upper "
                f"{self.upper}"
            )
        return self


class CorrectionConfig(Section):
    """Correction for the difference between trainer and rollout engine."""

    level: CorrectionLevel = CorrectionLevel.TOKEN
    """Unit that has one weight."""
    mode: CorrectionMode = CorrectionMode.TRUNCATE
    """Treatment of weights out of bounds."""
    upper: float = Field(default=2.0, gt=0)
    """Upper bound of the weight (IcePop: 5)."""
    lower: float | None = Field(default=None, ge=0)
    """Lower bound of the weight, only for `mode: mask` (IcePop: 0.5)."""
    reject: RejectionConfig | None = None
    """Also drop actions or rows with too large a difference; unset turns it off."""

    @model_validator(mode="after")
    def _bounds_fit(self) -> CorrectionConfig:
        if self.lower is not None and self.mode is CorrectionMode.TRUNCATE:
            raise ValueError("correction.lower acts with correction.mode: mask alone")
        if self.lower is not None and self.lower > self.upper:
            raise ValueError(
                f"correction.lower {self.lower} lies above correction.upper {self.upper}"
            )
        return self


def correction_weights(
    old_log_probs_BT: Tensor,
    rollout_log_probs_BT: Tensor,
    mask_BT: Tensor,
    config: CorrectionConfig,
) -> tuple[Tensor, Tensor]:
    """Return the weight of each action's loss, [B, T], 0 where it is dropped or masked, and the
    mask of dropped actions, [B, T] bool.

    Neither has a gradient. Inputs where the mask is 0 have no influence.
    """
    kept_BT = mask_BT != 0
    delta_BT = (old_log_probs_BT - rollout_log_probs_BT).detach().masked_fill(~kept_BT, 0.0)
    weights_BT = terms.ratio(at_level(delta_BT, kept_BT, config.level), delta_BT.new_zeros(()))
    dropped_BT = kept_BT.new_zeros(kept_BT.shape)
    if config.mode is CorrectionMode.TRUNCATE:
        weights_BT = weights_BT.clamp(max=config.upper)
    else:
        dropped_BT = (weights_BT > config.upper) | (weights_BT < (config.lower or 0.0))
    if config.reject is not None:
        dropped_BT = dropped_BT | rejected(delta_BT, kept_BT, config.reject)
    dropped_BT = dropped_BT & kept_BT
    return weights_BT.masked_fill(dropped_BT | ~kept_BT, 0.0), dropped_BT


def rejected(delta_BT: Tensor, kept_BT: Tensor, config: RejectionConfig) -> Tensor:
    """Return True where the estimate of KL(rollout, trainer) is out of bounds, [B, T]."""
    # The samples are the rollout engine's, so its log-probabilities stand where a KL term has the
    # policy's.
    estimate_BT = terms.kl_penalty(-delta_BT, delta_BT.new_zeros(()), config.kind)
    estimate_BT = at_level(estimate_BT, kept_BT, config.level)
    if config.lower is not None:
        too_low = estimate_BT < config.lower
    else:
        too_low = kept_BT.new_zeros(kept_BT.shape)
    return (estimate_BT > config.upper) | too_low


def at_level(values_BT: Tensor, kept_BT: Tensor, level: CorrectionLevel) -> Tensor:
    """Return the values themselves, or the sum or mean over each row's actions, expanded over the
    row, [B, T]."""
    if level is CorrectionLevel.TOKEN:
        return values_BT
    totals_B1 = values_BT.masked_fill(~kept_BT, 0.0).sum(1, keepdim=True)
    if level is CorrectionLevel.GEOMETRIC:
        totals_B1 = totals_B1 / kept_BT.sum(1, keepdim=True).clamp(min=1)
    return totals_B1.expand(values_BT.shape)
