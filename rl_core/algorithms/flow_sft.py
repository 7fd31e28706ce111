"""Flow matching on given pictures (arXiv 2210.02747): supervised fine-tuning of a diffusion model.

A picture x_0 is noised to x_t = (1 - t) x_0 + t eps, and the loss is the mean over its noised
copies of the squared error of the velocity, (v(x_t, t) - (eps - x_0))^2, a mean over the latent.
An action is one noised copy; the owner of the model computes the errors.
"""

from __future__ import annotations

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


@algorithms.register("flow_sft")
class FlowSft(RowAlgorithm):
    """Supervised fine-tuning of a diffusion model: flow matching on the pictures in its rows."""

    class Config(RowAlgorithm.Config):
        """Settings of flow matching; it has none of its own."""

    supports_multi_update: bool = True
    learns_from_advantages: bool = False

    def per_row(self, rewards_B: Tensor) -> Tensor:
        """Return 1 for every row, [B]: all pictures are good ones."""
        return at_least_float32(rewards_B.detach()).new_ones(len(rewards_B))

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
        """Return this micro-batch's share of the mean error. Only the mask, `denominators` and
        `positive_errors_BT` are used.

        Raises: ValueError when `positive_errors_BT` is missing.
        """
        errors_BT = measured.get("positive_errors_BT")
        if errors_BT is None:
            raise ValueError("positive_errors_BT is required: the errors of the velocities")
        errors_BT = cleaned(errors_BT, mask_BT)
        total = aggregate(errors_BT, mask_BT, Aggregation.TOKEN_MEAN, denominators)
        count = float((mask_BT != 0).sum())
        return total, {"loss": Metric(MetricKind.SUM, float(total.detach()), count)}
