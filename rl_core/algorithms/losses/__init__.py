"""Policy losses, one per file: the loss of each action, before the shared aggregation."""

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

__all__ = ["Actions", "PolicyLoss", "policy_losses"]
