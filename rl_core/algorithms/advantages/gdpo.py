"""GDPO (arXiv 2601.05242): each part of the reward is normalised within its group on its own, then
their weighted sum is whitened over all actions. Normalising the sum instead would let the part with
the largest spread drown the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.advantages.grpo import grpo
from rl_core.algorithms.advantages.scaling import ScaledConfig, whiten_rows
from rl_core.errors import RewardError

if TYPE_CHECKING:
    from torch import Tensor


@advantage_estimators.register("gdpo")
class GdpoAdvantage(RowEstimator):
    """GDPO: each part of the reward is normalised separately within its group."""

    class Config(ScaledConfig):
        """Weights of the parts, and conventions of both divisions."""

        weights: dict[str, float] = Field(default_factory=dict)
        """Weight of each part by its name; 1 if absent. Empty takes every part."""

    config: Config
    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return [B]: whiten(sum_k w_k grpo(r_k)). Raises: RewardError when a weighted part is
        missing."""
        parts = inputs.required("rewards_by_key", "the advantage gdpo")
        config = self.config
        missing = sorted(set(config.weights) - set(parts))
        if missing or not parts:
            raise RewardError(
                f"advantage.weights names {missing}; the rewards have the parts {sorted(parts)}"
            )
        scale = {"unbiased": config.unbiased, "eps": config.eps, "eps_in_root": config.eps_in_root}
        total_B = groups.rewards_B.new_zeros(groups.rewards_B.shape)
        for key, rewards_B in parts.items():
            part_B = grpo(Groups.of(rewards_B, inputs.group_ids_B), **scale)
            total_B = total_B + config.weights.get(key, 1.0) * part_B
        return whiten_rows(total_B, inputs.lengths_B, **scale)
