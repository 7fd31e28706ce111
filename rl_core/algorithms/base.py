"""What every algorithm is: advantages for a batch, and the loss of one micro-batch of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.registry import PluginConfig, Registry

if TYPE_CHECKING:
    from torch import Tensor


class StageAlgorithm(ABC):
    """An algorithm. It holds its settings and no other state, so every rank's copy gives the same numbers."""

    class Config(PluginConfig):
        """The recipe's `algorithm` block without its name."""

    supports_multi_update: ClassVar[bool] = False
    """Whether one rollout may be trained on more than once (the loss corrects for the policy having moved)."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def needs_reference(self) -> bool:
        """Whether `loss` must be given the log-probabilities of a reference model."""
        return False

    @property
    def needs_entropy(self) -> bool:
        """Whether `loss` must be given the entropy, with gradient."""
        return False

    @abstractmethod
    def advantages(self, rewards_B: Tensor, group_ids_B: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, Metric]]:
        """Advantages of a WHOLE batch (groups must not be split).

        Args: rewards_B: [B]. group_ids_B: [B] integers, equal for siblings, in any order. mask_BT: [B, T].
        Returns: [B, T], 0 where the mask is, and metrics. Raises: RewardError on a non-finite reward.
        """

    @abstractmethod
    def loss(
        self,
        log_probs_BT: Tensor,
        old_log_probs_BT: Tensor,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        ref_log_probs_BT: Tensor | None,
        entropy_BT: Tensor | None,
        denominators: Denominators,
    ) -> tuple[Tensor, dict[str, Metric]]:
        """This micro-batch's share of the optimiser step's loss.

        The shares, and their gradients, add up over micro-batches and ranks. A backend that averages gradients over
        N ranks must multiply the share by N.

        Args:
            log_probs_BT: of the policy now, with gradient.
            old_log_probs_BT: of the policy that rolled out.
            advantages_BT: from `advantages`.
            mask_BT: 1 where the model acted; what other places hold has no influence.
            ref_log_probs_BT: of the reference; required when `needs_reference`.
            entropy_BT: of the policy now; required when `needs_entropy`, else only logged.
            denominators: the counts of the whole step.

        Returns: a scalar, and metrics that merge exactly. Raises: ValueError on a missing input or a wrong shape.
        """


algorithms: Registry[StageAlgorithm] = Registry("algorithm", "rl_core.algorithms")
"""Algorithms by the `name` of a recipe's `algorithm` block."""
