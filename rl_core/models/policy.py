"""Base classes of policies, for the modules that check, decode, adapt and export one of any
kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rl_core.models.checks.paths import Paths
from rl_core.models.media import PromptMedia
from rl_core.models.model_inputs import ModelInputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Policy(nn.Module):
    """A trained model with its conventions."""

    model: Any
    """The trained module, which gets the adapters: of transformers or diffusers, or peft's around
    one."""

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes that FSDP wraps one by one."""
        raise NotImplementedError

    @property
    def lora_targets(self) -> list[str] | str:
        """Linear layers that get an adapter by default."""
        raise NotImplementedError


class TokenPolicy(Policy):
    """A policy whose actions are tokens; `causal_lm` says what each method does."""

    num_choices: int | None
    paths: Paths | None

    @property
    def language_model(self) -> PreTrainedModel:
        """The transformers model, below any adapters."""
        raise NotImplementedError

    @property
    def backbone(self) -> PreTrainedModel:
        """The transformers model without its head."""
        raise NotImplementedError

    @property
    def is_exact(self) -> bool:
        """True if a token gets the same bits whatever else is in its batch."""
        raise NotImplementedError

    def inputs(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor,
        position_ids_BL: Tensor,
        media_B: Sequence[PromptMedia | None] | None,
    ) -> ModelInputs:
        """Return the keyword arguments of the model's forward."""
        raise NotImplementedError

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Return the model's own logits [N, V]."""
        raise NotImplementedError

    def reply_positions(self, last_R: Tensor, step: int) -> Tensor:
        """Return position ids of a reply's token `step`."""
        raise NotImplementedError

    def compute_part_alone(self, alone: bool) -> bool:
        """Compute text with the language model inside a larger model alone."""
        raise NotImplementedError

    def why_no_packing(self) -> str | None:
        """Return the reason why packed rows would change the result."""
        raise NotImplementedError

    def enable_packing(self) -> None:
        """Allow packed rows."""
        raise NotImplementedError

    def why_no_prompt_sharing(self) -> str | None:
        """Return the reason why shared prompts would change the result."""
        raise NotImplementedError

    def enable_prompt_sharing(self) -> bool:
        """Allow shared prompts."""
        raise NotImplementedError
