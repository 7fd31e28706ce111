"""Flow-DPPO: -A rho on denoising steps, dropped where KL(new, old) >= tau and the step moves
further away.

Between two Gaussian steps of equal std the KL is exact, mean over latent dimensions of (mu -
mu_old)^2 / (2 std^2), so the trust region needs no ratio; see `rl_core.sde.gaussian_kl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.losses.base import Actions, PolicyLoss, policy_losses

if TYPE_CHECKING:
    from torch import Tensor


@policy_losses.register("flow_dppo")
class FlowDppoLoss(PolicyLoss):
    """Flow-DPPO: the unclipped surrogate inside an exact KL trust region."""

    needs_old_kl: ClassVar[bool] = True
    vanishes_without_advantage: ClassVar[bool] = True

    class Config(PolicyLoss.Config):
        """Trust region of Flow-DPPO."""

        max_kl: float = Field(default=1e-4, gt=0)
        """tau: KL from which on a step may only move back."""

    config: Config

    def per_action(self, actions: Actions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return [B, T], and `clip_fraction`, the share of dropped steps."""
        assert actions.old_kl_BT is not None  # `needs_old_kl` is checked by the caller
        dropped_BT = (actions.old_kl_BT.detach() >= self.config.max_kl) & actions.moves_away_BT
        return (-actions.advantages_BT * actions.ratio_BT).masked_fill(dropped_BT, 0.0), {
            "clip_fraction": dropped_BT
        }
