"""Interface of models of any kind that a backend can train."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_core.models.checks.comparison import Live
from rl_core.models.policy import Policy
from schemas.recipe import LoraConfig


class Bundle(Protocol):
    """A model of any kind, as the backend uses it."""

    @property
    def policy(self) -> Policy:
        """The trained module: `model` gets the adapters, at `lora_targets`; `block_classes` are
        wrapped one by one."""
        ...

    def load_policy(self) -> Policy:
        """Load a new copy of the policy before training."""
        ...

    # Any: each bundle takes policies of its own class alone.
    def said_by(self, policy: Any, device: torch.device) -> Tensor:
        """Return a policy's results on the probe inputs, [N], on the CPU."""
        ...

    def export(
        self, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live
    ) -> None:
        """Write the policy with these trained weights, and check that the export gives the live
        policy's results."""
        ...
