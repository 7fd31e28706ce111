"""Contract of a model family: the class that loads a model for the workers of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rl_core.models.checks.comparison import Live
    from rl_core.models.policy import Policy
    from schemas.sections.policy import LoraConfig


class Family(Protocol):
    """A model that a worker loads once: the policy, and everything around it.

    It is built with the located model and the recipe's block `model`, in the domain `unified` also
    with the size of a picture. Engines use more of it, as their domain needs: that of language
    models `tokenizer` and `processor`, that of diffusion models `family` and `place`. So a class
    usually derives from the domain's own: `TextBundle`, `ModelBundle`, `DiffusionBundle`,
    `UnifiedBundle`.
    """

    policy: Policy
    """The trained module: `model` gets the adapters, at `lora_targets`; `block_classes` are wrapped
    one by one."""

    def load_policy(self) -> Policy:
        """Load a new copy of the policy before training."""
        ...

    # Any: each bundle takes policies of its own class alone.
    def said_by(self, policy: object, device: torch.device) -> Tensor:
        """Return a policy's results on the probe inputs, [N], on the CPU."""
        ...

    def export(
        self, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live
    ) -> None:
        """Write the policy with these trained weights as a model folder."""
        ...
