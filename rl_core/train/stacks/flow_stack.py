"""The stack of flow matching: given pictures are noised, and the velocities there are learnt.

Shapes: B rows of K noised copies, N = B K, those of one row adjacent.
"""

from __future__ import annotations

from typing import Any, Unpack

from torch import Tensor

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import Metric
from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.micro_batches import MiniBatch
from rl_core.train.stacks.nft_stack import NftStack
from rl_core.train.stacks.segments import StackOptions
from schemas.sections.diffusion import DiffusionConfig


class FlowStack(NftStack):
    """A DiffusionStack whose shard also needs `clean` [B, ...] and `noise_seeds` [B, K]; it learns
    the prediction of the prompt alone, without guidance."""

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        algorithm: StageAlgorithm,
        config: DiffusionConfig,
        **options: Unpack[StackOptions],
    ) -> None:
        unguided = config.model_copy(update={"guidance_scale": 1.0})
        super().__init__(fsdp_backend, algorithm, unguided, **options)

    def prepare_segment(self, shard: DataProto, plan: list[MiniBatch]) -> None:
        """Freeze nothing: no old policy enters the loss."""

    def _loss(
        self, micro: DataProto, denominators: Denominators
    ) -> tuple[Tensor, dict[str, Metric]]:
        mask_BK = micro.tensor("response_mask")
        found_N = self.velocities(self.backend.policy, micro, self._noisy(micro)).float()
        clean_N = micro.tensor("clean").repeat_interleave(mask_BK.shape[1], 0)
        wanted_N = (self._noise(micro) - clean_N).to(found_N)
        unused: Any = None
        return self.algorithm.loss(
            log_probs_BT=unused,
            old_log_probs_BT=unused,
            advantages_BT=micro.tensor("advantages"),
            mask_BT=mask_BK,
            ref_log_probs_BT=None,
            entropy_BT=None,
            denominators=denominators,
            positive_errors_BT=(found_N - wanted_N).square().flatten(1).mean(1).view_as(mask_BK),
        )
