"""Policy losses: what one action adds to the loss, before the shared aggregation. One loss per file."""

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

__all__ = ["Actions", "PolicyLoss", "policy_losses"]
