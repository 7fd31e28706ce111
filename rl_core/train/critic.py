"""PPO's critic: a second model with a value head, trained by the same steps as the policy."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from rl_core.algorithms.critic import CriticConfig, value_loss
from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.models.bundle import ModelBundle
from rl_core.models.heads.value_head import add_value_head
from rl_core.ranks.dispatch import Collect, Dispatch, distributed
from rl_core.train.micro_batches import MiniBatch
from rl_core.train.stacks.token_stack import TrainStack
from schemas.recipe import ModelConfig


class CriticBundle(ModelBundle):
    """The policy's initial weights with a value head. Args: as of ModelBundle."""

    def __init__(self, source: str, config: ModelConfig, *, text_alone: bool = False) -> None:
        super().__init__(source, config, text_alone=text_alone)
        add_value_head(self.policy)


class CriticStack(TrainStack):
    """A TrainStack over a CriticBundle's backend, whose shard also needs `values`, `returns` [B,
    T].

    Its algorithm is the policy's, of which the `critic` block is used.
    """

    needs_advantages: ClassVar[bool] = False

    @property
    def config(self) -> CriticConfig:
        """The algorithm's `critic` block."""
        return getattr(self.algorithm, "critic", None) or CriticConfig()

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def values(self, shard: DataProto) -> DataProto | None:
        """Return `values` before each action, [B, T]; None on a rank that does not answer for its
        replica."""
        shard = shard.to(self.backend.device)
        with self.backend.anchor_policy() as critic:
            values_BT = self._log_probs(critic, shard, self._plan(shard))
        if self.backend.rank_info.is_head:
            return DataProto.from_dict({"values": values_BT})
        return None

    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Do nothing: the values at rollout are already in the shard."""

    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        values_BT = self._forward(self.backend.policy, micro, with_entropy=False)[0]
        old_BT, returns_BT = micro.tensor("values"), micro.tensor("returns")
        return value_loss(
            values_BT, old_BT, returns_BT, micro.tensor("response_mask"), denominators, self.config
        )


def critic_metrics(measured: dict[str, float]) -> dict[str, float]:
    """Return a critic's metrics under separate names."""
    return {f"critic/{name}": value for name, value in measured.items()}
