"""GRPO (arXiv 2402.03300): sample a group of replies to each prompt; a reply's advantage is its reward relative to
the group; PPO's clipped loss on every token; no critic.

loss = agg( max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) + kl_coef KL(policy, reference) - entropy_coef H )

The same file is DAPO (`clip_high: 0.28`, `aggregation: token-mean`, arXiv 2503.14476), Dr.GRPO (`advantage.norm_by_std:
false`, `aggregation: seq-mean-token-sum-norm`, arXiv 2503.20783) and RLOO with clipping (`advantage.name: rloo`).
A group whose rewards are all equal has advantage 0 and adds no policy gradient; it still counts in the denominators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from rl_core.algorithms import terms
from rl_core.algorithms.advantages import AdvantageEstimator, advantage_estimators
from rl_core.algorithms.base import StageAlgorithm, algorithms
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.terms import Aggregation, Denominators, KlKind

if TYPE_CHECKING:
    from torch import Tensor


@algorithms.register("grpo")
class Grpo(StageAlgorithm):
    """Group-relative policy optimisation with PPO's clipped loss."""

    class Config(StageAlgorithm.Config):
        """The recipe's `algorithm` block without its name."""

        advantage: dict[str, Any] = Field(default_factory=lambda: {"name": "grpo"})
        """Which advantage estimator, and its settings: `{name: grpo, norm_by_std: false}`."""
        clip_low: float = Field(default=0.2, ge=0, le=1)
        """The ratio is clipped from below at 1 - clip_low."""
        clip_high: float = Field(default=0.2, ge=0)
        """The ratio is clipped from above at 1 + clip_high; DAPO uses 0.28."""
        dual_clip: float | None = Field(default=None, gt=1)
        """Bounds the loss of actions with negative advantage by -A times this; off when absent."""
        kl_coef: float = Field(default=0.0, ge=0)
        """Weight of the KL to the reference model; 0 needs no reference."""
        kl_kind: KlKind = KlKind.K3
        """Which estimate of the KL."""
        kl_straight_through: bool = False
        """Take the KL's gradient from k2, whatever its value is taken from."""
        entropy_coef: float = Field(default=0.0, ge=0)
        """Weight of the entropy bonus."""
        aggregation: Aggregation = Aggregation.TOKEN_MEAN
        """How per-token losses become one number."""

        @field_validator("advantage")
        @classmethod
        def _advantage_exists(cls, block: dict[str, Any]) -> dict[str, Any]:
            advantage_estimators.resolve(block, "algorithm.advantage")
            return block

    config: Config
    supports_multi_update: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        estimator_cls, estimator_config = advantage_estimators.resolve(config.advantage, "algorithm.advantage")
        self.estimator: AdvantageEstimator = estimator_cls(estimator_config)

    @property
    def needs_reference(self) -> bool:
        """True when the KL has weight."""
        return self.config.kl_coef > 0

    @property
    def needs_entropy(self) -> bool:
        """True when the entropy bonus has weight."""
        return self.config.entropy_coef > 0

    def advantages(self, rewards_B: Tensor, group_ids_B: Tensor, mask_BT: Tensor) -> tuple[Tensor, dict[str, Metric]]:
        """[B, T] by the configured estimator, and its metrics."""
        return self.estimator(rewards_B, group_ids_B, mask_BT)

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
        """The share of these rows in the step's loss, and its metrics; see `StageAlgorithm.loss`.

        Metrics: loss, policy_loss (sums of shares); ratio_mean, clip_fraction, approx_kl, and where their input is
        given kl_ref and entropy (means over tokens); ratio_max.
        """
        self._check(log_probs_BT, old_log_probs_BT, advantages_BT, mask_BT, ref_log_probs_BT, entropy_BT)
        config = self.config
        # NaN or inf at padding would reach the gradient through a product with 0, so it goes first.
        log_probs_BT = _clean(log_probs_BT, mask_BT)
        old_log_probs_BT = _clean(old_log_probs_BT, mask_BT).detach()
        advantages_BT = _clean(advantages_BT, mask_BT).detach()

        ratio_BT = terms.ratio(log_probs_BT, old_log_probs_BT)
        per_token_BT = terms.clipped_surrogate(
            ratio_BT, advantages_BT, config.clip_low, config.clip_high, config.dual_clip
        )
        policy_loss = terms.aggregate(per_token_BT, mask_BT, config.aggregation, denominators)
        total = policy_loss
        means_BT = {
            "ratio_mean": ratio_BT,
            "clip_fraction": _is_clipped(ratio_BT, advantages_BT, config.clip_low, config.clip_high),
            "approx_kl": terms.kl_penalty(old_log_probs_BT, log_probs_BT, KlKind.K3),
        }
        if ref_log_probs_BT is not None:
            reference_BT = _clean(ref_log_probs_BT, mask_BT).detach()
            kl_BT = terms.kl_penalty(log_probs_BT, reference_BT, config.kl_kind, config.kl_straight_through)
            means_BT["kl_ref"] = kl_BT
            if config.kl_coef > 0:
                total = total + config.kl_coef * terms.aggregate(kl_BT, mask_BT, config.aggregation, denominators)
        if entropy_BT is not None:
            entropy_BT = means_BT["entropy"] = _clean(entropy_BT, mask_BT)
            if config.entropy_coef > 0:
                bonus = terms.aggregate(entropy_BT, mask_BT, config.aggregation, denominators)
                total = total - config.entropy_coef * bonus
        return total, _metrics(total, policy_loss, ratio_BT, means_BT, mask_BT)

    def _check(
        self,
        log_probs_BT: Tensor,
        old_log_probs_BT: Tensor,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        ref_log_probs_BT: Tensor | None,
        entropy_BT: Tensor | None,
    ) -> None:
        if self.needs_reference and ref_log_probs_BT is None:
            raise ValueError(f"kl_coef is {self.config.kl_coef}: ref_log_probs_BT is required")
        if self.needs_entropy and entropy_BT is None:
            raise ValueError(f"entropy_coef is {self.config.entropy_coef}: entropy_BT is required")
        given = {
            "old_log_probs_BT": old_log_probs_BT,
            "advantages_BT": advantages_BT,
            "mask_BT": mask_BT,
            "ref_log_probs_BT": ref_log_probs_BT,
            "entropy_BT": entropy_BT,
        }
        for name, tensor in given.items():
            if tensor is not None and tensor.shape != log_probs_BT.shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, log_probs_BT {tuple(log_probs_BT.shape)}")


def _clean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return terms.at_least_float32(values_BT).masked_fill(mask_BT == 0, 0.0)


def _is_clipped(ratio_BT: Tensor, advantages_BT: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """1 where the clip stops the gradient: past the upper bound with A > 0, past the lower one with A < 0."""
    above_BT = (ratio_BT > 1.0 + clip_high) & (advantages_BT > 0)
    below_BT = (ratio_BT < 1.0 - clip_low) & (advantages_BT < 0)
    return above_BT | below_BT


def _metrics(
    total: Tensor, policy_loss: Tensor, ratio_BT: Tensor, means_BT: dict[str, Tensor], mask_BT: Tensor
) -> dict[str, Metric]:
    import torch

    kept_BT = mask_BT != 0
    sums = [values_BT.detach().double().masked_fill(~kept_BT, 0.0).sum() for values_BT in means_BT.values()]
    ratio_max = ratio_BT.detach().double().masked_fill(~kept_BT, float("-inf")).amax()
    scalars = [total.detach().double(), policy_loss.detach().double(), kept_BT.sum().double(), ratio_max]
    # One transfer from the device for all of them.
    loss, policy, num_tokens, highest, *totals = torch.stack([*scalars, *sums]).tolist()
    metrics = {
        "loss": Metric(MetricKind.SUM, loss, num_tokens),
        "policy_loss": Metric(MetricKind.SUM, policy, num_tokens),
        "ratio_max": Metric(MetricKind.MAX, highest, num_tokens),
    }
    for name, value in zip(means_BT, totals, strict=True):
        metrics[name] = Metric(MetricKind.MEAN, value, num_tokens)
    return metrics
