"""Changes of what a rollout has by action, told to the ranks by numbers of rows: no such column
comes to the driver."""

from __future__ import annotations

import torch

from rl_core.algorithms.shaping import at_last_action, without_rows
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.distributed.layers import Derived
from rl_core.distributed.refs import NUM_ACTIONS
from rl_core.ranks.dispatch import MASK
from rl_core.trainers.step_record import column_names

TURN_REWARDS = "turn_rewards"
"""Column of a rollout: rewards by action, [B, T]."""


def derive(rollout: DataProto | DataProtoRef, column: Derived) -> None:
    """Put a column into a rollout, in place: into one by reference the rule, else the values."""
    if isinstance(rollout, DataProtoRef):
        rollout.derive(column)
        return
    assert rollout.batch is not None
    rollout.batch[column.key] = column.of(rollout.tensor)


def num_actions(rollout: DataProto | DataProtoRef) -> torch.Tensor:
    """Return the number of actions of each row, [B]; the mask is read only where it lies here."""
    # The ranks could not count a mask that was put over theirs as a whole.
    here = isinstance(rollout, DataProto) or rollout.is_held(MASK)
    if here or NUM_ACTIONS not in column_names(rollout):
        return (rollout.tensor(MASK) != 0).sum(1)
    return rollout.tensor(NUM_ACTIONS)


def leave_out(rollout: DataProtoRef, rows_B: torch.Tensor) -> None:
    """Mask rows out of the loss, in place. Args: rows_B: [B], True for those rows."""
    counts_B = num_actions(rollout).masked_fill(rows_B, 0)
    rollout.derive(Derived(MASK, (MASK,), without_rows, (rows_B,)))
    rollout.replace(DataProto.from_dict({NUM_ACTIONS: counts_B}))


def add_at_the_end(rollout: DataProtoRef, rewards_B: torch.Tensor) -> None:
    """Add to each row's reward at its last action, in place."""
    needs = TURN_REWARDS, MASK
    rollout.derive(Derived(TURN_REWARDS, needs, _with_last, (rewards_B,)))


def drop_rewards(rollout: DataProtoRef, rows_B: torch.Tensor) -> None:
    """Set the rewards of some rows to 0 at every action, in place. Args: rows_B: [B], True for
    those rows."""
    rollout.derive(Derived(TURN_REWARDS, (TURN_REWARDS,), without_rows, (rows_B,)))


def earn_at_the_end(rollout: DataProtoRef, rewards_B: torch.Tensor) -> None:
    """Set each row's reward at its last action, and 0 at the others, in place."""
    rollout.derive(Derived(TURN_REWARDS, (MASK,), _last, (rewards_B,)))


def _with_last(turn_BT: torch.Tensor, mask_BT: torch.Tensor, more_B: torch.Tensor) -> torch.Tensor:
    return turn_BT + at_last_action(more_B, mask_BT)


def _last(mask_BT: torch.Tensor, rewards_B: torch.Tensor) -> torch.Tensor:
    return at_last_action(rewards_B, mask_BT)
