"""What a model of any kind has to offer so that a backend can train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_core.models.comparison import Live
from schemas.recipe import LoraConfig


class Bundle(Protocol):
    """What a model of any kind is to the backend."""

    policy: Any
    """What is trained: `model` gets the adapters, at `lora_targets`; `block_classes` are wrapped one by one."""

    def load_policy(self) -> Any:
        """The policy before training, anew."""
        ...

    def said_by(self, policy: Any, device: torch.device) -> Tensor:
        """What a policy says of fixed inputs, [N], on the CPU."""
        ...

    def export(self, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live) -> None:
        """Write the policy with these trained weights, if what was written says what the live policy says."""
        ...
