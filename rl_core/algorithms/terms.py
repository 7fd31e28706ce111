"""The terms that policy losses are made of, over [B, T].

Axes: B rows, T actions (tokens or denoising steps). A mask is 1 (or True) where the model acted.
Log-ratios are clamped to +-20 before `exp`: e^20 is far outside any clip range, and float32
overflows at e^88.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from rl_core.sde.precision import at_least_float32

if TYPE_CHECKING:
    from torch import Tensor


LOG_RATIO_LIMIT = 20.0
K3_LIMIT = 10.0
"""Bound of one action's k3, whose e^-d would otherwise let a single token that the reference finds
e^20 times likelier dominate a step."""


class KlKind(StrEnum):
    """Estimate of KL(policy, reference) from one sample, d = log_prob - ref_log_prob
    (joschu.net/blog/kl-approx)."""

    K1 = "k1"
    """d: unbiased, high variance, can be negative; as a loss its expected gradient is zero (use
    straight-through)."""
    ABS = "abs"
    """|d|."""
    K2 = "k2"
    """d^2 / 2: biased as a value, unbiased gradient."""
    K3 = "k3"
    """min(e^-d + d - 1, 10): never negative, low variance, unbiased except for the bound, beyond
    which (d under -2.6 or over 11) it has no gradient."""
    EXACT = "exact"
    """Exact value from the policy itself, if it can compute one: between Gaussian denoising steps
    there is a closed form."""


class Aggregation(StrEnum):
    """Aggregation of per-action losses; all counts are those of the whole optimizer step."""

    TOKEN_MEAN = "token-mean"
    """Every action has the same weight (DAPO): sum / actions."""
    TOKEN_SUM = "token-sum"
    """Sum over all actions."""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """Sum within a row, mean over rows."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"
    """Sum within a row over a constant length, mean over rows (Dr.GRPO)."""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """Mean within a row, mean over rows (the GRPO paper)."""


@dataclass(frozen=True)
class Denominators:
    """Denominators of losses: counts of ALL rows of one optimizer step, over micro-batches and
    ranks."""

    num_tokens: float
    """Number of actions with mask 1."""
    num_sequences: float
    """Number of rows with at least one such action."""
    max_length: int
    """Constant length of `seq-mean-token-sum-norm`; the same for every part."""


def ratio(log_probs_BT: Tensor, old_log_probs_BT: Tensor) -> Tensor:
    """Return exp(log_prob - old_log_prob), [B, T]. Beyond +-20 the ratio is constant and has no
    gradient."""
    return (log_probs_BT - old_log_probs_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped_surrogate(
    ratio_BT: Tensor,
    advantages_BT: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """Return the PPO loss per action, max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)).

    PPO (arXiv 1707.06347 eq. 7), DAPO with `clip_high > clip_low` (arXiv 2503.14476 eq. 10).
    `dual_clip` c > 1 bounds the loss of actions with A < 0 by -A c (arXiv 1912.09729 eq. 5).

    Returns: [B, T], with gradient through `ratio_BT`.
    """
    unclipped_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_BT = unclipped_BT.maximum(clipped_BT)
    if dual_clip is None:
        return loss_BT
    return loss_BT.minimum(-advantages_BT * dual_clip).where(advantages_BT < 0, loss_BT)


def kl_penalty(
    log_probs_BT: Tensor,
    ref_log_probs_BT: Tensor,
    kind: KlKind = KlKind.K3,
    straight_through: bool = False,
) -> Tensor:
    """Return the KL estimate per action, [B, T]; `straight_through` keeps its value and takes the
    gradient of k2.

    k3 is bounded as in verl, wherever it is used; TRL leaves it unbounded. The gradient of k2 is d
    itself, so that with `straight_through` an action beyond the bound is still pulled back to the
    reference.

    Raises: ValueError for `exact`, which no log-probability can give.
    """
    if kind is KlKind.EXACT:
        raise ValueError(
            "an exact KL comes from the policy, not from log-probabilities; use k1, abs, k2 or k3"
        )
    difference_BT = log_probs_BT - ref_log_probs_BT
    half_square_BT = 0.5 * difference_BT.square()
    if kind is KlKind.K1:
        value_BT = difference_BT
    elif kind is KlKind.ABS:
        value_BT = difference_BT.abs()
    elif kind is KlKind.K2:
        value_BT = half_square_BT
    else:
        value_BT = (
            (-difference_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() + difference_BT - 1.0
        )
        value_BT = value_BT.clamp(max=K3_LIMIT)
    if straight_through:
        return value_BT.detach() + (half_square_BT - half_square_BT.detach())
    return value_BT


def aggregate(
    loss_BT: Tensor, mask_BT: Tensor, mode: Aggregation, denominators: Denominators
) -> Tensor:
    """Return this part's share of the step's loss, a scalar: the shares of all micro-batches and
    ranks ADD UP to the loss.

    A row must be within one part. Values at mask 0, NaN included, have no influence.
    """
    masked_BT = loss_BT.masked_fill(mask_BT == 0, 0.0)
    # Counts are whole numbers: the floor of 1 only acts on a step without any action, whose loss is
    # 0.
    num_tokens, num_sequences = (
        max(denominators.num_tokens, 1.0),
        max(denominators.num_sequences, 1.0),
    )
    if mode is Aggregation.TOKEN_MEAN:
        return masked_BT.sum() / num_tokens
    if mode is Aggregation.TOKEN_SUM:
        return masked_BT.sum()
    if mode is Aggregation.SEQ_MEAN_TOKEN_SUM:
        return masked_BT.sum() / num_sequences
    if mode is Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
        return masked_BT.sum() / (num_sequences * denominators.max_length)
    lengths_B = (mask_BT != 0).sum(dim=1).clamp(min=1)
    return (masked_BT.sum(dim=1) / lengths_B).sum() / num_sequences


def cleaned(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The values in float32 or better, 0 where the mask is: a NaN there has no influence."""
    return at_least_float32(values_BT).masked_fill(mask_BT == 0, 0.0)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Return the mean where mask is not 0, over everything or over `dim`; 0 where nothing is
    counted."""
    kept = mask != 0
    masked = values.masked_fill(~kept, 0.0)
    if dim is None:
        return masked.sum() / kept.sum().clamp(min=1)
    return masked.sum(dim=dim) / kept.sum(dim=dim).clamp(min=1)
