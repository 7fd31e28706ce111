"""Interface of a backend for the modules that save, compare and send what it trains."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from rl_core.models.policy import Policy
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.bundle import Bundle
from rl_core.train.weights.ema import EmaShadow
from schemas.recipe import EmaFullConfig, EmaLoraConfig, FSDPConfig, LoraConfig


class Trained(Protocol):
    """The sharded policy of one rank; `rl_core.train.fsdp.FSDPBackend` is one."""

    bundle: Bundle
    policy: Policy
    trainable: dict[str, nn.Parameter]
    """Parameters that learn, by name."""
    optimizer: torch.optim.AdamW
    scheduler: LambdaLR
    ema: EmaShadow | None
    num_skipped_steps: int
    fsdp_cfg: FSDPConfig
    lora_cfg: LoraConfig | None
    ema_cfg: EmaLoraConfig | EmaFullConfig | None
    rank_info: RankInfo
    device: torch.device

    def check_onloaded(self, what: str) -> None:
        """Raises: RLTrainError naming `what` while the model is offloaded."""
        ...

    def reshard(self) -> None:
        """Drop gathered copies of the weights."""
        ...

    def moving_average(self) -> EmaShadow:
        """Raises: RLTrainError when there is none."""
        ...
