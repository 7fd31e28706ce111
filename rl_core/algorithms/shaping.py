"""Shaping of a batch: truncated replies, groups without learning signal, and the choice of the next
prompts.

Axes: B rows, T actions, P prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from schemas.sections.section import Section

if TYPE_CHECKING:
    from torch import Tensor


class OverlongConfig(Section):
    """Treatment of replies that reach the length limit (arXiv 2503.14476 sec. 3.4)."""

    filter: bool = False
    """Leave truncated replies out of the loss: their reward reflects the limit, not the answer."""
    buffer: int = Field(default=0, ge=0)
    """Tokens before the limit at which the penalty starts; 0 turns it off."""
    penalty: float = Field(default=1.0, ge=0)
    """Penalty of a reply that reaches the limit; less within the buffer."""


def without_rows(values_BT: Tensor, rows_B: Tensor) -> Tensor:
    """Return values, or a mask, with all actions of some rows set to 0, [B, T]. Args: rows_B: True
    for those rows."""
    return values_BT.masked_fill(rows_B[:, None], 0)


def soft_overlong_penalty(
    lengths_B: Tensor, max_length: int, buffer: int, penalty: float = 1.0
) -> Tensor:
    """Return the penalties to ADD to the reward, [B], 0 or less (DAPO, arXiv 2503.14476 eq. 13).

    0 up to max_length - buffer, then falling linearly to -penalty at max_length. Raises: ValueError
    on a bad buffer.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(
            f"overlong.buffer must lie in 1..{max_length} (the length limit), got {buffer}"
        )
    excess_B = (lengths_B.double() - (max_length - buffer)) / buffer
    return -penalty * excess_B.clamp(0.0, 1.0)


def at_last_action(values_B: Tensor, mask_BT: Tensor) -> Tensor:
    """[B, T]: each row's value at its last action, 0 elsewhere and in rows without any."""
    import torch

    places_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B1 = torch.where(mask_BT != 0, places_T, -1).amax(dim=1, keepdim=True)
    return torch.where(places_T == last_B1, values_B[:, None], 0.0)


def informative_rows(rewards_B: Tensor, group_ids_B: Tensor) -> Tensor:
    """Return True for rows of groups whose rewards differ, [B] (DAPO's dynamic sampling, arXiv
    2503.14476 sec. 3.2).

    Rows of the other groups have advantage 0; dynamic sampling replaces them by new prompts.
    Raises: RewardError on a non-finite reward.
    """
    from rl_core.algorithms.advantages.groups import Groups

    return ~Groups.of(rewards_B, group_ids_B).flat_B


def curriculum_weights(num_right_P: Tensor, num_tried_P: Tensor, *, floor: float = 0.05) -> Tensor:
    """Return the probability of drawing each prompt, [P], summing to 1: largest where half of the
    replies are right.

    The pass rate p = (right + 1)/(tried + 2) starts at 1/2, so an untried prompt is drawn first.
    The weight is 4 p (1 - p), the variance of the reward as a share of the largest, and at least
    `floor`, so that prompts that are always or never solved are still drawn sometimes. Raises:
    ValueError when more are right than were tried.
    """
    if bool(((num_right_P < 0) | (num_right_P > num_tried_P)).any()):
        raise ValueError("num_right_P must lie between 0 and num_tried_P")
    rate_P = (num_right_P.double() + 1) / (num_tried_P.double() + 2)
    weights_P = (4 * rate_P * (1 - rate_P)).clamp(min=floor)
    return weights_P / weights_P.sum()
