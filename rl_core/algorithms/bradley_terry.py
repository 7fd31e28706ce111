"""Training of a reward model on pairs of conversations, chosen c and rejected r (Bradley and Terry
1952; arXiv 2203.02155 eq. 1).

L = -log sigmoid(s_c - s_r - m) + center_coefficient * (s_c + s_r)^2, a mean over pairs, with the
model's score s of a whole conversation and the pair's margin m (arXiv 2307.09288 eq. 2; 0 without
one). Only differences of scores enter the first term, so that scores may drift; the second keeps
their mean at 0 (arXiv 2312.09244 sec. 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rl_core.algorithms.base import ActionMeasures, StageAlgorithm, algorithms
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.pairs import PairAlgorithm, ahead, paired_rows
from rl_core.algorithms.terms import Denominators, cleaned

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor


@algorithms.register("bradley_terry")
class BradleyTerry(PairAlgorithm):
    """Logistic loss on the lead of the chosen conversation's score, for `domain: reward_model`."""

    class Config(StageAlgorithm.Config):
        """Settings of the loss."""

        center_coefficient: float = Field(default=0.0, ge=0)
        """Weight of the squared sum of a pair's scores, which keeps scores around 0; 0.01 is
        usual."""

    config: Config

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
        """Return this micro-batch's share of the mean over pairs.

        Args: log_probs_BT: the score of each conversation, at its one action, with gradient.
        Raises: ValueError when rows are not adjacent pairs, the chosen one first.
        """
        acting_B = paired_rows(advantages_BT, mask_BT)
        scores_N2 = cleaned(log_probs_BT, mask_BT).sum(1)[acting_B].view(-1, 2)
        leads_N = ahead(scores_N2)
        margins_B = measured.get("margins_B")
        margins_N = 0.0 if margins_B is None else margins_B[acting_B].view(-1, 2)[:, 0].to(leads_N)
        num_pairs = max(denominators.num_sequences / 2.0, 1.0)
        shares = {"ranking_loss": -_log_sigmoid(leads_N - margins_N).sum() / num_pairs}
        if self.config.center_coefficient > 0:
            shares["center_loss"] = (
                self.config.center_coefficient * scores_N2.sum(1).square().sum() / num_pairs
            )
        # The first summand keeps the graph of an idle pass, which holds no pair.
        total = sum(shares.values(), start=scores_N2.sum() * 0.0)
        return total, _metrics({"loss": total, **shares}, scores_N2)


def _metrics(shares: dict[str, Tensor], scores_N2: Tensor) -> dict[str, Metric]:
    scores_N2 = scores_N2.detach().double()
    count, leads_N = float(len(scores_N2)), ahead(scores_N2)
    metrics = {}
    for name, share in shares.items():
        metrics[name] = Metric(MetricKind.SUM, float(share.detach()), count)
    return metrics | {
        "score_chosen": Metric(MetricKind.MEAN, float(scores_N2[:, 0].sum()), count),
        "score_rejected": Metric(MetricKind.MEAN, float(scores_N2[:, 1].sum()), count),
        "score_margin": Metric(MetricKind.MEAN, float(leads_N.sum()), count),
        "reward_accuracy": Metric(MetricKind.MEAN, float((leads_N > 0).sum()), count),
    }


def _log_sigmoid(values: Tensor) -> Tensor:
    import torch

    return torch.nn.functional.logsigmoid(values)
