"""Supervised fine-tuning: the likelihood of given answers.

L = - sum_t log pi(y_t | x, y_<t) / (number of tokens), over all answers of the optimizer step
(`token-mean`): the same as one pass over the whole batch, whatever its micro-batches and ranks. By
`seq-mean-token-mean` each answer has the same weight, however long it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from rl_core.algorithms.base import (
    ActionMeasures,
    RowAlgorithm,
    algorithms,
)
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.terms import Aggregation, Denominators, aggregate, cleaned
from rl_core.sde.precision import at_least_float32

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor


class AnswerWeight(StrEnum):
    """Weight of the tokens of an answer in the loss."""

    TOKEN_MEAN = "token-mean"
    """Every token has the same weight."""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """Every answer has the same weight."""


@algorithms.register("sft")
class Sft(RowAlgorithm):
    """Supervised fine-tuning: the negative log-likelihood of the answers in the rows."""

    class Config(RowAlgorithm.Config):
        """Settings of supervised fine-tuning."""

        aggregation: AnswerWeight = AnswerWeight.TOKEN_MEAN
        """Weight of the tokens of an answer."""

    # No old policy enters the loss, so rows may be trained on as often as one likes.
    supports_multi_update: bool = True
    learns_from_advantages: bool = False

    def per_row(self, rewards_B: Tensor) -> Tensor:
        """Return 1 for every row, [B]: all answers are good ones."""
        return at_least_float32(rewards_B.detach()).new_ones(len(rewards_B))

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
        """Return this micro-batch's share of the negative log-likelihood. Only `log_probs_BT`,
        `mask_BT` and `denominators` are used."""
        loss_BT = -cleaned(log_probs_BT, mask_BT)
        mode = Aggregation(self.config.aggregation)
        total = aggregate(loss_BT, mask_BT, mode, denominators)
        num_tokens = float((mask_BT != 0).sum())
        metrics = {
            "loss": Metric(MetricKind.SUM, float(total.detach()), num_tokens),
            "nll": Metric(MetricKind.MEAN, float(loss_BT.detach().double().sum()), num_tokens),
        }
        if entropy_BT is not None:
            entropy = cleaned(entropy_BT.detach(), mask_BT).double().sum()
            metrics["entropy"] = Metric(MetricKind.MEAN, float(entropy), num_tokens)
        return total, metrics
