"""A unified model as a policy: one module whose forward scores tokens or gives velocities, whichever it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.diffusion.guidance import PromptConditions
from rl_core.models.diffusion.policy import DiffusionPolicy, Noisy
from rl_core.models.unified.compact import ROWS, CompactUnified


class UnifiedPolicy(CausalLMPolicy, DiffusionPolicy):
    """A language model and a flow-matching model under one FSDP root, so both kinds of pass go through its forward.

    Args: model: the trained parts; unset takes the family's own.
    """

    family: CompactUnified
    block_classes = DiffusionPolicy.block_classes
    lora_targets = DiffusionPolicy.lora_targets

    def __init__(self, family: CompactUnified, model: nn.Module | None = None) -> None:
        DiffusionPolicy.__init__(self, family, model)
        self.sequence_parallel = None

    @property
    def language_model(self) -> Any:
        """The decoder, below any adapters."""
        return self.parts.decoder

    @property
    def parts(self) -> Any:
        """Decoder and transformer, below any adapters."""
        return self.transformer

    def enable_activation_checkpointing(self) -> None:
        """Recompute the blocks of both parts in the backward pass."""
        DiffusionPolicy.enable_activation_checkpointing(self)

    def conditions_of(self, prompts: Sequence[PromptConditions], copies: int, scale: float) -> dict[str, Tensor]:
        """Each context once, and in `rows` which of them each latent is drawn for; of both halves of a guidance the
        negative one comes first.
        """
        told, rows_N = self.distinct(prompts, copies, scale)
        return {**self.family.batch(told), ROWS: rows_N}

    @torch.no_grad()
    def read(self, conditions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the transformer is shown of contexts, once for all steps of a sampling; see `CompactUnified.read`."""
        return self.family.read(self.parts, conditions)

    def forward(self, first: Any, *others: Any, **named: Any) -> Any:  # type: ignore[override]
        """Of `Noisy` latents the velocity, as `DiffusionPolicy`; of token ids what `CausalLMPolicy` says of them."""
        if isinstance(first, Noisy):
            return DiffusionPolicy.forward(self, first, *others, **named)
        return CausalLMPolicy.forward(self, first, *others, **named)
