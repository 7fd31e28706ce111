"""What every algorithm is: advantages for a batch, and the loss of one micro-batch of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.runtime.registry import PluginConfig, Registry

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor


class RowMeasures(TypedDict, total=False):
    """What some advantages need besides rewards, groups and mask; None is the same as absent."""

    rewards_BT: Tensor | None
    """Each action's own part of the reward (a turn's, at its last token), summing to rewards_B over the mask."""
    values_BT: Tensor | None
    """The critic's value before each action; required when `needs_critic`."""
    greedy_rewards_B: Tensor | None
    """The reward of the greedy rollout of the row's prompt; required when `needs_greedy_baseline`."""
    rewards_by_key: Mapping[str, Tensor] | None
    """The parts the reward is made of, [B] each; required by `gdpo`."""
    log_probs_BT: Tensor | None
    """Of the policy that rolled out; required when `kl_in_reward` or `needs_sum_squared_probs`."""
    ref_log_probs_BT: Tensor | None
    """Of the reference; required when `kl_in_reward`."""
    sum_squared_probs_BT: Tensor | None
    """Sum over the vocabulary of the squared probabilities; required when `needs_sum_squared_probs`."""


class ActionMeasures(TypedDict, total=False):
    """What some losses need besides log-probabilities, advantages and mask; None is the same as absent."""

    rollout_log_probs_BT: Tensor | None
    """As the rollout engine reported them; required when `needs_rollout_log_probs`."""
    ref_kl_BT: Tensor | None
    """KL(policy now, reference), with gradient, exact; required when `needs_ref_kl`."""
    old_kl_BT: Tensor | None
    """KL(policy now, policy that rolled out), exact; required when `needs_old_kl`."""
    positive_errors_BT: Tensor | None
    """Of the implicit positive policy, with gradient; required by `diffusion_nft`."""
    negative_errors_BT: Tensor | None
    """Of the implicit negative policy, with gradient; required by `diffusion_nft`."""


class StageAlgorithm(ABC):
    """An algorithm: its settings, and at most a few adaptive coefficients.

    Every rank's copy gives the same numbers as long as all observe the same metrics.
    """

    class Config(PluginConfig):
        """The recipe's `algorithm` block without its name."""

    supports_multi_update: bool = False
    """Whether one rollout may take more than one optimiser step (the loss corrects for the policy having moved)."""
    needs_reference: bool = False
    """Whether a reference model is needed, and its log-probabilities given to `loss` (`needs_ref_kl`: its exact KL)."""
    needs_entropy: bool = False
    """Whether `loss` must be given the entropy, with gradient."""
    needs_rollout_log_probs: bool = False
    """Whether `loss` must be given the rollout engine's log-probabilities."""
    needs_ref_kl: bool = False
    """Whether `loss` must be given the exact KL to the reference."""
    needs_old_kl: bool = False
    """Whether `loss` must be given the exact KL to the policy that rolled out."""
    needs_critic: bool = False
    """Whether `advantages` must be given a critic's values."""
    needs_siblings: bool = False
    """Whether a row's advantages are 0 unless another row of its prompt is there to be compared with."""
    needs_greedy_baseline: bool = False
    """Whether `advantages` must be given the reward of a greedy rollout."""
    needs_sum_squared_probs: bool = False
    """Whether `advantages` must be given log-probabilities and the sums of squared probabilities."""
    kl_in_reward: bool = False
    """Whether `advantages` must be given log-probabilities and the reference's."""
    dynamic_sampling: bool = False
    """Whether groups that teach nothing are to be replaced by fresh prompts (`shaping.informative_rows`)."""
    max_extra_rollouts: int = 4
    """With `dynamic_sampling`: how often at most a step rolls out again."""
    rolls_out_average: bool = False
    """Whether rollouts are made by the moving average of the weights, which is also the "old" policy."""
    vanishes_without_advantage: bool = False
    """Whether a row whose advantages are all 0 changes neither the loss nor its gradient, but in the denominators."""
    rows_per_unit: int = 1
    """Adjacent rows that must stay in one micro-batch: 2 for pairs."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @abstractmethod
    def advantages(
        self, rewards_B: Tensor, group_ids_B: Tensor, mask_BT: Tensor, **measured: Unpack[RowMeasures]
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Advantages of a WHOLE batch (groups must not be split).

        Args: rewards_B: [B]. group_ids_B: [B] integers, equal for siblings, in any order. mask_BT: [B, T].
        Returns: [B, T], 0 where the mask is, and metrics.
        Raises: RewardError on a non-finite reward, ValueError on a missing input or a wrong shape.
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
        **measured: Unpack[ActionMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """This micro-batch's share of the optimiser step's loss.

        The shares, and their gradients, add up over micro-batches and ranks. A backend that averages gradients over
        N ranks must multiply the share by N.

        Args:
            log_probs_BT: of the policy now, with gradient.
            old_log_probs_BT: of the policy that rolled out.
            advantages_BT: from `advantages`.
            mask_BT: 1 where the model acted; what other places hold has no influence.
            ref_log_probs_BT: of the reference; required when `needs_reference` and not `needs_ref_kl`.
            entropy_BT: of the policy now; required when `needs_entropy`, else only logged.
            denominators: the counts of the whole step.

        Returns: a scalar, and metrics that merge exactly. Raises: ValueError on a missing input or a wrong shape.
        """

    def returns(
        self, rewards_B: Tensor, group_ids_B: Tensor, mask_BT: Tensor, **measured: Unpack[RowMeasures]
    ) -> Tensor:
        """What the critic is trained on, [B, T]; same arguments as `advantages`. Only when `needs_critic`."""
        raise ValueError(f"{type(self).__name__} has no critic, so there are no returns to train one on")

    def observe(self, metrics: Mapping[str, float], num_rows: int) -> None:
        """Adapt coefficients to a step's reduced metrics, the same on every rank. Nothing for most algorithms."""
        return None

    def state_dict(self) -> dict[str, float]:
        """The adaptive coefficients, for the checkpoint; empty for most algorithms."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore `state_dict()`."""
        return None


algorithms: Registry[StageAlgorithm] = Registry("algorithm", "rl_core.algorithms")
"""Algorithms by the `name` of a recipe's `algorithm` block."""
