"""Combination of environment and scorer results into the reward that is trained on.

reward = environment + sum_k weight_k * score_k, then the shaping of truncated replies. Scores and
shaping are added at the last action of the row; an environment's turn rewards stay at the turns
that earned them.

Axes: B rows, T actions, K scorers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.algorithms.shaping import soft_overlong_penalty
from schemas.sections.rewards import RewardServiceConfig, Truncation

if TYPE_CHECKING:
    from torch import Tensor

ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Earned:
    """Rewards of a rollout's rows before any scorer."""

    rewards_B: Tensor
    lengths_B: Tensor
    """Length of the last reply in tokens."""
    truncated_B: Tensor
    failed_B: Tensor
    """Mask of rows without a reward."""


@dataclass(frozen=True)
class Rewarded:
    """Rewards that the rows are trained on."""

    rewards_B: Tensor
    added_B: Tensor
    """Part of the reward that is not the environment's; a row earns it at its last action."""
    dropped_B: Tensor
    """Mask of rows that earn nothing, at any action."""
    parts: dict[str, Tensor]
    """Weighted parts of the reward, [B] each: the environment and every scorer that counts; 0 where
    a row has none."""
    unscored_B: Tensor
    """Mask of rows that lack a score that counts."""


def combine(
    earned: Earned,
    scores_BK: Tensor,
    weights: dict[str, float],
    config: RewardServiceConfig,
    max_length: int,
) -> Rewarded:
    """Compute the rewards of a rollout.

    Args: scores_BK: NaN where there is no score. weights: weights of the scorers, by column; a
    scorer of weight 0 is only logged. max_length: limit of one reply, in tokens.
    """
    parts = {ENVIRONMENT: earned.rewards_B}
    unscored_B = earned.failed_B.new_zeros(earned.failed_B.shape)
    for (key, weight), scores_B in zip(weights.items(), scores_BK.unbind(1), strict=True):
        if weight:
            unscored_B = unscored_B | scores_B.isnan()
            parts[key] = weight * scores_B.nan_to_num(0.0)
    total_B = sum(parts.values(), start=earned.rewards_B.new_zeros(earned.rewards_B.shape))
    total_B = total_B + _penalties(earned, config, max_length)
    added_B, dropped_B = (
        total_B - earned.rewards_B,
        earned.failed_B.new_zeros(earned.failed_B.shape),
    )
    if config.truncated is Truncation.ZERO:
        dropped_B = earned.truncated_B
        total_B = total_B.masked_fill(dropped_B, 0.0)
        parts = {key: part_B.masked_fill(dropped_B, 0.0) for key, part_B in parts.items()}
    return Rewarded(total_B, added_B, dropped_B, parts, unscored_B & ~earned.failed_B)


def score_metrics(scores_BK: Tensor, keys: Sequence[str], earned: Earned) -> dict[str, float]:
    """Return mean and standard deviation of each scorer's unweighted scores, and the number of rows
    without one."""
    good_B = ~earned.failed_B
    columns = {ENVIRONMENT: earned.rewards_B} | dict(zip(keys, scores_BK.unbind(1), strict=True))
    metrics = {}
    for key, scores_B in columns.items():
        found = scores_B[good_B & ~scores_B.isnan()].double()
        if len(found):
            metrics[f"reward/{key}/mean"] = float(found.mean())
            metrics[f"reward/{key}/std"] = float(found.std(correction=0))
        metrics[f"reward/{key}/failed"] = float((scores_B.isnan() & good_B).sum())
    return metrics | {f"reward/{ENVIRONMENT}/failed": float(earned.failed_B.sum())}


def _penalties(earned: Earned, config: RewardServiceConfig, max_length: int) -> Tensor:
    """Return the length penalties, [B], 0 or less: by length, and the full penalty for a row that
    the context limit truncated."""
    none_B = earned.rewards_B.new_zeros(earned.rewards_B.shape)
    if config.truncated is not Truncation.SOFT:
        return none_B
    buffer = min(config.overlong_buffer, max_length)
    lengths_B = earned.lengths_B.masked_fill(earned.truncated_B, max_length)
    return soft_overlong_penalty(lengths_B, max_length, buffer, config.overlong_penalty).to(
        none_B.dtype
    )
