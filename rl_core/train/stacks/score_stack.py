"""ScoreStack: the stack of a reward model, whose one action per row is the score of a
conversation."""

from __future__ import annotations

from torch import Tensor

from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.train.micro_batches import MiniBatch
from rl_core.train.stacks.token_stack import TrainStack

MARGINS = "margins"
"""Column [B] with the required lead of each pair's chosen row."""


class ScoreStack(TrainStack):
    """A TrainStack over a RewardBundle's backend, whose shard also needs `margins` [B].

    The action of a row is the placeholder after its conversation: the value before it is the score
    of the whole conversation.
    """

    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Do nothing: a loss of scores compares with no earlier policy."""

    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        scores_BT = self._forward(self.backend.policy, micro, with_entropy=False)[0]
        return self.algorithm.loss(
            log_probs_BT=scores_BT,
            old_log_probs_BT=scores_BT.detach(),
            advantages_BT=micro.tensor("advantages"),
            mask_BT=micro.tensor("response_mask"),
            ref_log_probs_BT=None,
            entropy_BT=None,
            denominators=denominators,
            margins_B=micro.tensor(MARGINS),
        )
