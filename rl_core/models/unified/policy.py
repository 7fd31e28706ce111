"""A unified model as a policy: one module whose forward scores tokens or gives velocities."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.diffusion.base import Size
from rl_core.models.diffusion.guidance import PromptConditions
from rl_core.models.diffusion.policy import DiffusionPolicy, Noisy
from rl_core.models.heads.head import projection_scale
from rl_core.models.media import PromptMedia
from rl_core.models.model_inputs import ModelInputs
from rl_core.models.unified.base import ROWS, Parts, UnifiedFamily

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class UnifiedPolicy(  # pyright: ignore[reportIncompatibleMethodOverride]
    CausalLMPolicy, DiffusionPolicy
):
    """A language model and a flow-matching model under one FSDP root, so both kinds of pass go
    through its forward.

    Args: model: the trained parts; unset takes the family's own. size: size of the images, which
    determines the layout of some plans. Raises: ModelError on a size that the model cannot plan.
    """

    family: UnifiedFamily
    # The language part is under the other one, whose names these are.
    block_classes = DiffusionPolicy.block_classes  # type: ignore[override]
    lora_targets = DiffusionPolicy.lora_targets  # type: ignore[override]

    def __init__(
        self, family: UnifiedFamily, model: nn.Module | None = None, *, size: Size
    ) -> None:
        DiffusionPolicy.__init__(self, family, model)
        self.projection_scale = projection_scale(self.language_model)
        self.size, self.layout = size, family.layout(size)
        self.num_choices = None if self.layout is None else self.layout.num_codes

    def __deepcopy__(self, memo: dict[int, object]) -> UnifiedPolicy:
        """Copy the parts; the family is shared."""
        return type(self)(self.family, copy.deepcopy(self.model, memo), size=self.size)

    @property
    def language_model(self) -> PreTrainedModel:
        """The part that writes, below any adapters."""
        return self.parts.writer

    @property
    def parts(self) -> Parts:
        """Writer and transformer, below any adapters."""
        return self.transformer

    def enable_activation_checkpointing(self) -> None:
        """Recompute the blocks of both parts in the backward pass."""
        DiffusionPolicy.enable_activation_checkpointing(self)

    def inputs(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor,
        position_ids_BL: Tensor,
        media_B: Sequence[PromptMedia | None] | None,
    ) -> ModelInputs:
        """Return the inputs of `CausalLMPolicy`, with the tokens of a laid-out plan at their
        positions."""
        if self.layout is not None:
            position_ids_BL = self.layout.positions(input_ids_BL, position_ids_BL)
        return super().inputs(input_ids_BL, attention_mask_BL, position_ids_BL, media_B)

    def reply_positions(self, last_R: Tensor, step: int) -> Tensor:
        """Return positions as in `inputs`."""
        if self.layout is not None:
            return self.layout.reply_positions(last_R, step)
        return super().reply_positions(last_R, step)

    def why_no_prompt_sharing(self) -> str | None:
        """Return the reason of `CausalLMPolicy`, or that plans are laid out."""
        if self.layout is not None:
            return "a shared pass counts the tokens of a plan, which is laid out"
        return super().why_no_prompt_sharing()

    def conditions_of(
        self, prompts: Sequence[PromptConditions], copies: int, scale: float
    ) -> dict[str, Tensor]:
        """Return each context once, and in `rows` the context of each latent; with guidance, the
        negative half comes first."""
        told, rows_N = self.distinct(prompts, copies, scale)
        return {**self.family.batch(told), ROWS: rows_N}

    @torch.no_grad()
    def read(self, conditions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the transformer's conditions from contexts, once for all steps of a sampling; see
        `UnifiedFamily.read`."""
        return self.family.read(self.parts, conditions)

    def forward(self, first: Any, *others: Any, **named: Any) -> Any:  # type: ignore[override]
        """Return the velocity of `Noisy` latents, like `DiffusionPolicy`, or the scores of token
        ids, like `CausalLMPolicy`."""
        if isinstance(first, Noisy):
            return DiffusionPolicy.forward(self, first, *others, **named)
        return CausalLMPolicy.forward(self, first, *others, **named)
