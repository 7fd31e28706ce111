"""The algorithm behind all presets that weigh actions by an advantage.

loss = agg( w l(rho, A) + kl.coef KL(policy, reference) - entropy_coef H )

l is the `loss` block's, A the `advantage` block's, w the `correction` block's (1 without it). A
group whose rewards are all equal has advantage 0 and adds no policy gradient; it still counts in
the denominators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rl_core.algorithms import terms
from rl_core.algorithms.advantages import (
    AdvantageEstimator,
    AdvantageInputs,
    RowNumbers,
    advantage_estimators,
)
from rl_core.algorithms.base import ActionMeasures, RowMeasures, RowParts, StageAlgorithm
from rl_core.algorithms.blocks import Block, PolicyGradientConfig
from rl_core.algorithms.correction import correction_weights
from rl_core.algorithms.critic import CriticConfig
from rl_core.algorithms.kl import KlController, KlPlace
from rl_core.algorithms.losses import Actions, PolicyLoss, policy_losses
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.terms import Denominators, KlKind

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor


@dataclass(frozen=True)
class Extras:
    """Optional inputs of `loss`, [B, T] each."""

    rollout_log_probs_BT: Tensor | None = None
    ref_kl_BT: Tensor | None = None
    old_kl_BT: Tensor | None = None


class PolicyGradient(StageAlgorithm):
    """An advantage, a policy loss, and optionally a KL, a correction and an entropy bonus."""

    class Config(PolicyGradientConfig):
        """Settings without a preset."""

    config: PolicyGradientConfig
    # Of most policy losses; an instance takes it from its own.
    supports_multi_update: bool = True

    def __init__(self, config: PolicyGradientConfig) -> None:
        super().__init__(config)
        estimator_cls, estimator_config = advantage_estimators.resolve(
            config.advantage, "algorithm.advantage"
        )
        loss_cls, loss_config = policy_losses.resolve(config.loss_block(), "algorithm.loss")
        self.estimator: AdvantageEstimator = estimator_cls(estimator_config)
        self.policy_loss: PolicyLoss = loss_cls(loss_config)
        self.kl = KlController(config.kl.coef, config.kl.adaptive)
        self.critic = (config.critic or CriticConfig()) if self.estimator.needs_critic else None
        self.supports_multi_update = self.policy_loss.supports_multi_update
        self.needs_reference = config.kl.coef > 0
        self.needs_ref_kl = self.needs_reference and config.kl.kind is KlKind.EXACT
        self.kl_in_reward = self.needs_reference and config.kl.place is KlPlace.REWARD
        self.needs_entropy = config.entropy_coef > 0
        self.vanishes_without_advantage = (
            self.policy_loss.vanishes_without_advantage
            and self.policy_loss.splits_exactly
            and not self.needs_entropy
            and (self.kl_in_reward or not self.needs_reference)
        )
        self.needs_rollout_log_probs = config.correction is not None
        self.needs_old_kl = self.policy_loss.needs_old_kl
        self.needs_critic = self.estimator.needs_critic
        self.needs_siblings = self.estimator.needs_siblings
        self.needs_greedy_baseline = self.estimator.needs_greedy_baseline
        self.needs_sum_squared_probs = self.estimator.needs_sum_squared_probs
        self.dynamic_sampling, self.max_extra_rollouts = (
            config.dynamic_sampling,
            config.max_extra_rollouts,
        )

    def advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        mask_BT: Tensor,
        **measured: Unpack[RowMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return [B, T] by the configured estimator, and its metrics; with `kl_in_reward` also
        `kl_reward`, per action."""
        inputs, metrics = self._inputs(rewards_B, group_ids_B, mask_BT, measured)
        advantages_BT, counted = self.estimator(inputs)
        return advantages_BT, counted | metrics

    def row_advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        lengths_B: Tensor,
        **parts: Unpack[RowParts],
    ) -> tuple[Tensor, dict[str, Metric]] | None:
        """Return [B] by the configured estimator, and its metrics; None with `kl_in_reward`, or if
        the estimator needs more of the actions than their number."""
        if self.kl_in_reward:
            return None
        return self.estimator.of_rows(RowNumbers(rewards_B, group_ids_B, lengths_B, **parts))

    def returns(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        mask_BT: Tensor,
        **measured: Unpack[RowMeasures],
    ) -> Tensor:
        """Return the targets of the critic, [B, T]. Raises: ValueError when the advantage has no
        critic."""
        inputs, _ = self._inputs(rewards_B, group_ids_B, mask_BT, measured)
        return self.estimator.returns(inputs)

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
        """Return the share of these rows in the step's loss, and its metrics; see
        `StageAlgorithm.loss`.

        Metrics: loss, policy_loss (sums of shares); ratio_mean, approx_kl, the metrics of the
        policy loss, and, if their input is given, kl_ref, entropy and the correction's (means over
        actions); ratio_max, kl_coef.
        """
        extras = Extras(**_stated_only(measured))
        self._check(
            log_probs_BT,
            old_log_probs_BT,
            advantages_BT,
            mask_BT,
            ref_log_probs_BT,
            entropy_BT,
            extras,
        )
        actions = _actions(log_probs_BT, old_log_probs_BT, advantages_BT, mask_BT, extras.old_kl_BT)
        per_action_BT, logged_BT = self.policy_loss.per_action(actions)
        means_BT = {
            "ratio_mean": actions.ratio_BT,
            "approx_kl": terms.kl_penalty(
                actions.old_log_probs_BT, actions.log_probs_BT, KlKind.K3
            ),
            **logged_BT,
        }
        if self.config.correction is not None and extras.rollout_log_probs_BT is not None:
            rollout_BT = terms.cleaned(extras.rollout_log_probs_BT, mask_BT)
            weights_BT, dropped_BT = correction_weights(
                actions.old_log_probs_BT, rollout_BT, mask_BT, self.config.correction
            )
            per_action_BT = per_action_BT * weights_BT
            means_BT |= {"correction_weight": weights_BT, "correction_dropped": dropped_BT}
        policy_loss = self._aggregate(per_action_BT, mask_BT, denominators)
        total = policy_loss
        kl_BT = self._reference_kl(actions, ref_log_probs_BT, extras.ref_kl_BT)
        if kl_BT is not None:
            means_BT["kl_ref"] = kl_BT
            if self.kl.coef > 0 and not self.kl_in_reward:
                total = total + self.kl.coef * self._aggregate(kl_BT, mask_BT, denominators)
        if entropy_BT is not None:
            means_BT["entropy"] = terms.cleaned(entropy_BT, mask_BT)
            if self.needs_entropy:
                bonus = self._aggregate(means_BT["entropy"], mask_BT, denominators)
                total = total - self.config.entropy_coef * bonus
        metrics = _metrics(total, policy_loss, actions.ratio_BT, means_BT, actions.mask_BT)
        if self.needs_reference:
            metrics["kl_coef"] = Metric(MetricKind.MAX, self.kl.coef, 1.0)
        return total, metrics

    def observe(self, metrics: Mapping[str, float], num_rows: int) -> None:
        """Adapt the KL's coefficient to `kl_ref` (or `kl_reward`); skip steps without a trained
        row.

        Raises: ValueError when neither was measured.
        """
        name = "kl_reward" if self.kl_in_reward else "kl_ref"
        if self.kl.adaptive is None or ("loss" in metrics and math.isnan(metrics["loss"])):
            return
        if name not in metrics:
            raise ValueError(f"kl.adaptive needs the metric {name}; got {sorted(metrics)}")
        if math.isfinite(metrics[name]):
            self.kl.update(metrics[name], num_rows)

    def state_dict(self) -> dict[str, float]:
        """Return `kl_coef`, if it adapts."""
        return self.kl.state_dict()

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore `state_dict()`."""
        self.kl.load_state_dict(state)

    def _aggregate(self, values_BT: Tensor, mask_BT: Tensor, denominators: Denominators) -> Tensor:
        return terms.aggregate(
            values_BT, mask_BT, self.policy_loss.config.aggregation, denominators
        )

    def _inputs(
        self, rewards_B: Tensor, group_ids_B: Tensor, mask_BT: Tensor, measured: RowMeasures
    ) -> tuple[AdvantageInputs, dict[str, Metric]]:
        given = _stated_only(measured)
        reference_BT, log_probs_BT = given.pop("ref_log_probs_BT", None), given.get("log_probs_BT")
        if not self.kl_in_reward:
            return AdvantageInputs(rewards_B, group_ids_B, mask_BT, **given), {}
        if reference_BT is None or log_probs_BT is None:
            raise ValueError(
                "kl.place is reward: advantages needs log_probs_BT and ref_log_probs_BT"
            )
        kl_BT = terms.kl_penalty(
            terms.cleaned(log_probs_BT, mask_BT),
            terms.cleaned(reference_BT, mask_BT),
            self.config.kl.kind,
        )
        count = float((mask_BT != 0).sum())
        metrics = {"kl_reward": Metric(MetricKind.MEAN, float(kl_BT.double().sum()), count)}
        return AdvantageInputs(
            rewards_B, group_ids_B, mask_BT, self.kl.coef * kl_BT, **given
        ), metrics

    def _reference_kl(
        self, actions: Actions, ref_log_probs_BT: Tensor | None, ref_kl_BT: Tensor | None
    ) -> Tensor | None:
        kl = self.config.kl
        if kl.kind is KlKind.EXACT:
            if ref_kl_BT is None:
                return None
            return terms.cleaned(ref_kl_BT, actions.mask_BT)
        if ref_log_probs_BT is None:
            return None
        reference_BT = terms.cleaned(ref_log_probs_BT, actions.mask_BT).detach()
        return terms.kl_penalty(actions.log_probs_BT, reference_BT, kl.kind, kl.straight_through)

    def _check(
        self,
        log_probs_BT: Tensor,
        old_log_probs_BT: Tensor,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        ref_log_probs_BT: Tensor | None,
        entropy_BT: Tensor | None,
        extras: Extras,
    ) -> None:
        given = {
            "old_log_probs_BT": old_log_probs_BT,
            "advantages_BT": advantages_BT,
            "mask_BT": mask_BT,
            "ref_log_probs_BT": ref_log_probs_BT,
            "entropy_BT": entropy_BT,
            **vars(extras),
        }
        wanted = {
            "ref_log_probs_BT": self.needs_reference
            and not self.needs_ref_kl
            and not self.kl_in_reward,
            "ref_kl_BT": self.needs_ref_kl,
            "entropy_BT": self.needs_entropy,
            "rollout_log_probs_BT": self.needs_rollout_log_probs,
            "old_kl_BT": self.needs_old_kl,
        }
        for name, tensor in given.items():
            if tensor is None and wanted.get(name):
                raise ValueError(
                    f"{name} is required by this algorithm block: {_stated(self.config)}"
                )
            if tensor is not None and tensor.shape != log_probs_BT.shape:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, log_probs_BT "
                    f"{tuple(log_probs_BT.shape)}"
                )


def _stated_only(measured: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in measured.items() if value is not None}


def _stated(config: PolicyGradientConfig) -> Block:
    return config.model_dump(mode="json", exclude_defaults=True)


def _actions(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    old_kl_BT: Tensor | None,
) -> Actions:
    # NaN or inf at padding would reach the gradient through a product with 0, so it goes first.
    return Actions(
        terms.cleaned(log_probs_BT, mask_BT),
        terms.cleaned(old_log_probs_BT, mask_BT).detach(),
        terms.cleaned(advantages_BT, mask_BT).detach(),
        mask_BT != 0,
        None if old_kl_BT is None else terms.cleaned(old_kl_BT, mask_BT),
    )


def _metrics(
    total: Tensor,
    policy_loss: Tensor,
    ratio_BT: Tensor,
    means_BT: dict[str, Tensor],
    kept_BT: Tensor,
) -> dict[str, Metric]:
    import torch

    sums = []
    for values_BT in means_BT.values():
        sums.append(values_BT.detach().double().masked_fill(~kept_BT, 0.0).sum())
    ratio_max = ratio_BT.detach().double().masked_fill(~kept_BT, float("-inf")).amax()
    scalars = [
        total.detach().double(),
        policy_loss.detach().double(),
        kept_BT.sum().double(),
        ratio_max,
    ]
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
