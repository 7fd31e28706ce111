"""DiffusionNFT (arXiv 2509.16117 eqs. 5-7): reinforcement on the forward process, without an SDE or
log-probabilities.

A clean sample x_0 is noised to x_t = (1 - t) x_0 + t eps, and the velocities of an implicit
positive and negative policy are mixed from the trained one and the "old" one that sampled: v+ =
beta v + (1 - beta) v_old, v- = (1 + beta) v_old - beta v. With r = clip(A, +-M)/(2M) + 1/2 the loss
is M mean(r e+ / beta + (1 - r) e- / beta), where e is the squared error of x_0 predicted by x_t - t
v over its detached mean absolute error. The old policy is a moving average, or the trained one as
it was before the step. A rollout is trained on once.

An action is one noised copy of the sample. The owner of the model computes the errors
(`nft_errors`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from rl_core.algorithms import terms
from rl_core.algorithms.advantages import (
    AdvantageEstimator,
    AdvantageInputs,
    RowNumbers,
    advantage_estimators,
)
from rl_core.algorithms.base import (
    ActionMeasures,
    RowMeasures,
    RowParts,
    StageAlgorithm,
    algorithms,
)
from rl_core.algorithms.blocks import Block
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.terms import Aggregation, Denominators
from rl_core.sde.precision import at_least_float32

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor

MIN_SCALE = 1e-5
"""Lower bound of the mean absolute error that an error is divided by."""


def nft_errors(
    velocity: Tensor,
    old_velocity: Tensor,
    noisy: Tensor,
    clean: Tensor,
    time_N: Tensor,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Return the errors e+ and e- of N noised samples, [N] each, in float32 or better, with
    gradient through `velocity`.

    Args: velocity, old_velocity, noisy, clean: [N, ...], latents of any rank. time_N: t, 0 clean to
    1 noise.
    """
    velocity, old_velocity, noisy, clean = (
        at_least_float32(tensor) for tensor in (velocity, old_velocity.detach(), noisy, clean)
    )
    time = time_N.to(velocity).view(-1, *[1] * (velocity.ndim - 1))
    positive = beta * velocity + (1.0 - beta) * old_velocity
    negative = (1.0 + beta) * old_velocity - beta * velocity
    return _error(noisy - time * positive, clean), _error(noisy - time * negative, clean)


def _error(predicted: Tensor, clean: Tensor) -> Tensor:
    difference = (predicted - clean).flatten(1)
    scale_N1 = difference.detach().abs().mean(1, keepdim=True).clamp(min=MIN_SCALE)
    return (difference.square() / scale_N1).mean(1)


class OldPolicy(StrEnum):
    """Policy that samples, and that the implicit policies lie around."""

    AVERAGE = "average"
    """The moving average that the recipe keeps (`ema_lora` or `ema_full` with `rollout: true`)."""
    CURRENT = "current"
    """The trained policy as it was before the step: the paper's decay of 0, which learns fastest
    and is the first to become unstable."""


@algorithms.register("diffusion_nft")
class DiffusionNft(StageAlgorithm):
    """DiffusionNFT: a regression towards good samples and away from bad ones."""

    class Config(StageAlgorithm.Config):
        """Settings of DiffusionNFT, with the authors' defaults."""

        advantage: Block = Field(default_factory=lambda: {"name": "grpo", "std_scope": "batch"})
        """Advantage estimator and its settings."""
        max_advantage: float = Field(default=5.0, gt=0)
        """M: absolute value to which advantages are clipped before they are mapped to 0..1."""
        beta: float = Field(default=1.0, gt=0)
        """Distance of the implicit policies from the old one."""
        old_policy: OldPolicy = OldPolicy.AVERAGE
        """Policy that samples. Next to a language model that learns as well, it can only be
        `current`."""

        @field_validator("advantage")
        @classmethod
        def _advantage_exists(cls, block: Block) -> Block:
            advantage_estimators.resolve(block, "algorithm.advantage")
            return block

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rolls_out_average = config.old_policy is OldPolicy.AVERAGE
        estimator_cls, estimator_config = advantage_estimators.resolve(
            config.advantage, "algorithm.advantage"
        )
        self.estimator: AdvantageEstimator = estimator_cls(estimator_config)
        self.needs_siblings = self.estimator.needs_siblings

    def advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        mask_BT: Tensor,
        **measured: Unpack[RowMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return [B, T] by the configured estimator, and its metrics."""
        given: dict[str, Any] = {}
        for name, value in measured.items():
            if value is not None:
                given[name] = value
        return self.estimator(AdvantageInputs(rewards_B, group_ids_B, mask_BT, **given))

    def row_advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        lengths_B: Tensor,
        **parts: Unpack[RowParts],
    ) -> tuple[Tensor, dict[str, Metric]] | None:
        """Return [B] by the configured estimator, and its metrics; None if it needs more of the
        actions than their number."""
        return self.estimator.of_rows(RowNumbers(rewards_B, group_ids_B, lengths_B, **parts))

    def loss(
        self,
        log_probs_BT: Tensor | None,
        old_log_probs_BT: Tensor | None,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        ref_log_probs_BT: Tensor | None,
        entropy_BT: Tensor | None,
        denominators: Denominators,
        **measured: Unpack[ActionMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return this micro-batch's share. Log-probabilities and entropy are not used and may be
        None.

        Raises: ValueError when `positive_errors_BT` or `negative_errors_BT` is missing or has a
        wrong shape.
        """
        errors = {name: measured.get(name) for name in ("positive_errors_BT", "negative_errors_BT")}
        for name, tensor in errors.items():
            if tensor is None or tensor.shape != mask_BT.shape:
                found = "nothing" if tensor is None else tuple(tensor.shape)
                raise ValueError(
                    f"{name} must be given in the shape of the mask, {tuple(mask_BT.shape)}; got "
                    f"{found}"
                )
        positive_BT, negative_BT = (
            terms.cleaned(tensor, mask_BT) for tensor in errors.values() if tensor is not None
        )
        bound, beta = self.config.max_advantage, self.config.beta
        share_BT = (
            terms.cleaned(advantages_BT, mask_BT).detach().clamp(-bound, bound) / (2.0 * bound)
            + 0.5
        )
        per_action_BT = bound * (share_BT * positive_BT + (1.0 - share_BT) * negative_BT) / beta
        loss = terms.aggregate(per_action_BT, mask_BT, Aggregation.TOKEN_MEAN, denominators)
        count = float((mask_BT != 0).sum())
        means = {"positive_error": positive_BT, "negative_error": negative_BT}
        return loss, {
            "loss": Metric(MetricKind.SUM, float(loss.detach()), count),
            **{
                name: Metric(MetricKind.MEAN, float(tensor.detach().sum()), count)
                for name, tensor in means.items()
            },
        }
