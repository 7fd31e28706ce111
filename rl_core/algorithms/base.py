"""Base class of algorithms: advantages of a batch, and the loss of one micro-batch of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from rl_core.algorithms.advantages import over_actions
from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.runtime.registry import PluginConfig, Registry

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor


class RowParts(TypedDict, total=False):
    """Optional inputs of advantages that are a number a row; None is the same as absent."""

    greedy_rewards_B: Tensor | None
    """Reward of the greedy rollout of the row's prompt; required if `needs_greedy_baseline`."""
    rewards_by_key: Mapping[str, Tensor] | None
    """Parts of the reward by name, [B] each; required by `gdpo`."""


class RowMeasures(RowParts, total=False):
    """Optional inputs of advantages besides rewards, groups and mask; None is the same as
    absent."""

    rewards_BT: Tensor | None
    """Each action's own part of the reward (a turn's, at its last token), which sums to rewards_B
    over the mask."""
    values_BT: Tensor | None
    """The critic's value before each action; required if `needs_critic`."""
    log_probs_BT: Tensor | None
    """Log-probabilities of the policy that sampled; required if `kl_in_reward` or
    `needs_sum_squared_probs`."""
    ref_log_probs_BT: Tensor | None
    """Log-probabilities of the reference; required if `kl_in_reward`."""
    sum_squared_probs_BT: Tensor | None
    """Sum over the vocabulary of the squared probabilities; required if
    `needs_sum_squared_probs`."""
    teacher_log_probs_BT: Tensor | None
    """Log-probabilities of the teacher; required if `needs_teacher`, unless
    `compares_distributions`."""
    teacher_entropy_BT: Tensor | None
    """Entropy of the teacher, if it is known."""


class ActionMeasures(TypedDict, total=False):
    """Optional inputs of losses besides log-probabilities, advantages and mask; None is the same as
    absent."""

    rollout_log_probs_BT: Tensor | None
    """Log-probabilities reported by the rollout engine; required if `needs_rollout_log_probs`."""
    ref_kl_BT: Tensor | None
    """Exact KL(current policy, reference), with gradient; required if `needs_ref_kl`."""
    old_kl_BT: Tensor | None
    """Exact KL(current policy, policy that sampled); required if `needs_old_kl`."""
    teacher_divergence_BT: Tensor | None
    """Divergence of the current policy's distribution from the teacher's, with gradient; required
    if `compares_distributions`."""
    positive_errors_BT: Tensor | None
    """Errors of the implicit positive policy, with gradient; required by `diffusion_nft`."""
    negative_errors_BT: Tensor | None
    """Errors of the implicit negative policy, with gradient; required by `diffusion_nft`."""
    margins_B: Tensor | None
    """Required lead of a pair's chosen row, equal in both rows; read by `bradley_terry`."""


class StageAlgorithm(ABC):
    """An algorithm: its settings, and possibly a few adaptive coefficients.

    Every rank's copy gives the same numbers as long as all observe the same metrics.
    """

    class Config(PluginConfig):
        """The recipe's `algorithm` block without its name."""

    supports_multi_update: bool = False
    """True if one rollout may take more than one optimizer step (the loss corrects for the change
    of the policy)."""
    needs_reference: bool = False
    """True if `loss` needs a reference model's log-probabilities (with `needs_ref_kl`: its exact
    KL)."""
    needs_entropy: bool = False
    """True if `loss` needs the entropy, with gradient."""
    needs_rollout_log_probs: bool = False
    """True if `loss` needs the rollout engine's log-probabilities."""
    needs_ref_kl: bool = False
    """True if `loss` needs the exact KL to the reference."""
    needs_old_kl: bool = False
    """True if `loss` needs the exact KL to the policy that sampled."""
    needs_critic: bool = False
    """True if `advantages` needs a critic's values."""
    needs_siblings: bool = False
    """True if a row's advantages are 0 without another row of its prompt to compare with."""
    needs_greedy_baseline: bool = False
    """True if `advantages` needs the reward of a greedy rollout."""
    needs_sum_squared_probs: bool = False
    """True if `advantages` needs log-probabilities and the sums of squared probabilities."""
    needs_teacher: bool = False
    """True if a teacher judges the sampled tokens; see `distillation`."""
    compares_distributions: bool = False
    """True if `loss` needs the divergence from the teacher, which teaches without advantages."""
    kl_in_reward: bool = False
    """True if `advantages` needs log-probabilities and the reference's."""
    dynamic_sampling: bool = False
    """True if groups without learning signal are replaced by new prompts
    (`shaping.informative_rows`)."""
    max_extra_rollouts: int = 4
    """With `dynamic_sampling`: maximum number of additional rollouts of a step."""
    rolls_out_average: bool = False
    """True if rollouts are sampled by the moving average of the weights, which is then also the
    "old" policy."""
    vanishes_without_advantage: bool = False
    """True if a row whose advantages are all 0 affects only the denominators of the loss and its
    gradient."""
    learns_from_advantages: bool = True
    """False if no advantage reaches `loss`: rewards are only logged, and nothing has to be found by
    exploring."""
    rows_per_unit: int = 1
    """Number of adjacent rows that must stay in one micro-batch: 2 for pairs."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def measures_first(self) -> bool:
        """True if `advantages` needs log-probabilities that a stack has to compute."""
        judged = self.needs_teacher and not self.compares_distributions
        return self.kl_in_reward or self.needs_sum_squared_probs or judged

    @abstractmethod
    def advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        mask_BT: Tensor,
        **measured: Unpack[RowMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the advantages of a WHOLE batch (groups must not be split).

        Args: rewards_B: [B]. group_ids_B: [B] integers, equal within a group, in any order.
        mask_BT: [B, T].
        Returns: [B, T], 0 where the mask is 0, and metrics.
        Raises: RewardError on a non-finite reward, ValueError on a missing input or a wrong shape.
        """

    def row_advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        lengths_B: Tensor,
        **parts: Unpack[RowParts],
    ) -> tuple[Tensor, dict[str, Metric]] | None:
        """Return the one advantage that all actions of a row have by `advantages`, [B], and the
        same metrics; None if actions of a row differ, or more has to be known of them.

        Where it answers, a run never brings what the rows have by action to the driver. It is asked
        unless `advantages` is written by a class derived from the one that wrote this.

        Args: lengths_B: number of actions of each row. Raises: as `advantages`.
        """
        return None

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
        """Return this micro-batch's share of the optimizer step's loss.

        The shares, and their gradients, add up over micro-batches and ranks. A backend that
        averages gradients over N ranks must multiply the share by N.

        Args:
            log_probs_BT: log-probabilities of the current policy, with gradient.
            old_log_probs_BT: log-probabilities of the policy that sampled.
            advantages_BT: result of `advantages`.
            mask_BT: 1 where the model acted; values elsewhere have no influence.
            ref_log_probs_BT: log-probabilities of the reference; required if `needs_reference` and
                not `needs_ref_kl`.
            entropy_BT: entropy of the current policy; required if `needs_entropy`, else only
                logged.
            denominators: counts of the whole step.

        Returns: a scalar, and metrics that merge exactly. Raises: ValueError on a missing input or
        a wrong shape.
        """

    def returns(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        mask_BT: Tensor,
        **measured: Unpack[RowMeasures],
    ) -> Tensor:
        """Return the targets of the critic, [B, T]; same arguments as `advantages`. Only if
        `needs_critic`."""
        raise ValueError(
            f"{type(self).__name__} has no critic, so there are no returns to train one on"
        )

    def observe(self, metrics: Mapping[str, float], num_rows: int) -> None:
        """Adapt coefficients to a step's reduced metrics, which are the same on every rank. Most
        algorithms have none."""
        return None

    def state_dict(self) -> dict[str, float]:
        """Return the adaptive coefficients, for the checkpoint; empty for most algorithms."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore `state_dict()`."""
        return None


class RowAlgorithm(StageAlgorithm):
    """An algorithm that gives all actions of a row one advantage, known from the row's reward."""

    @abstractmethod
    def per_row(self, rewards_B: Tensor) -> Tensor:
        """Return the advantage of each row, [B], at least float32."""

    def advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        mask_BT: Tensor,
        **measured: Unpack[RowMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return `per_row` at the actions of each row, [B, T]."""
        return over_actions(mask_BT, self.per_row(rewards_B)[:, None]), {}

    def row_advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        lengths_B: Tensor,
        **parts: Unpack[RowParts],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return `per_row`, [B]."""
        return self.per_row(rewards_B), {}


algorithms: Registry[StageAlgorithm] = Registry("algorithm", "rl_core.algorithms")
"""Algorithms by the `name` of a recipe's `algorithm` block."""
