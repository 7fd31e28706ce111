"""The compact unified model: a decoder writes a plan, and a transformer draws it from the decoder's
hidden states.

The transformer gets the decoder's last hidden states over prompt and plan, of which it sees the
last `context_length`, and the very last in place of a pooled text embedding: no token is predicted
after the end of a plan, which leaves that state free to summarise the plan. The states have a
gradient, so that drawing trains the decoder, too.

Shapes: U contexts of L tokens (prompt and plan, padded behind), N latents, C context states, H
hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from rl_core.models.diffusion.base import Condition, Size
from rl_core.models.diffusion.condition_images import check_images
from rl_core.models.diffusion.sd3 import SD3
from rl_core.models.unified.base import ROWS, Parts, UnifiedFamily

if TYPE_CHECKING:
    from PIL.Image import Image

CONTEXT = "context_ids"
"""Key of the tokens of prompt and plan, [L]."""


class CompactUnified(UnifiedFamily, SD3):
    """An SD3 whose text encoder is the policy itself."""

    name: ClassVar[str] = "compact_unified"
    pipelines: ClassVar[tuple[str, ...]] = ("CompactUnifiedPipeline",)
    padded: ClassVar[tuple[str, ...]] = (CONTEXT,)
    writer: ClassVar[str] = "decoder"

    @classmethod
    def pipeline_class(cls) -> Any:
        """Return this project's pipeline class."""
        from rl_core.models.unified.pipeline import CompactUnifiedPipeline

        return CompactUnifiedPipeline

    @property
    def lora_targets(self) -> list[str]:
        """The linear layers of the decoder, and the attention layers of the transformer."""
        decoder = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        return [*decoder, *super().lora_targets]

    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return `context_ids` [L] of texts alone."""
        check_images(self.name, images, self.condition_images)
        tokenizer = self.pipeline.tokenizer
        return [
            Condition(
                {CONTEXT: torch.tensor(tokenizer(text)["input_ids"] or [tokenizer.eos_token_id])}
            )
            for text in prompts
        ]

    def plan_conditions(
        self, prompts: Sequence[str], contexts: Sequence[list[int]], size: Size
    ) -> list[Condition | str]:
        """Return the contexts themselves: they are read again in training, with gradient."""
        return [Condition({CONTEXT: torch.tensor(context)}) for context in contexts]

    def read(self, parts: Parts, conditions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the transformer's conditions: `prompt_embeds` [N, C, H] and `pooled` [N, H], with
        gradient.

        SD3 does not mask text, so states that a short context lacks are zeros, and C is the same
        for all. Args: conditions: `context_ids` [U, L] with their mask, and `rows` [N].
        """
        used_UL = conditions[f"{CONTEXT}_mask"]
        # Pads stand behind, where causal attention does not look.
        hidden_ULH = parts.writer.model(
            input_ids=conditions[CONTEXT], use_cache=False
        ).last_hidden_state
        num_shown = self.pipeline.config.context_length
        places_UC = (
            used_UL.sum(1, keepdim=True)
            - num_shown
            + torch.arange(num_shown, device=used_UL.device)
        )
        shown_UC = (places_UC >= 0).to(hidden_ULH.dtype)
        index_UCH = places_UC.clamp_min(0)[..., None].expand(-1, -1, hidden_ULH.shape[-1])
        states_UCH = hidden_ULH.gather(1, index_UCH) * shown_UC[..., None]
        told_NCH = states_UCH[conditions[ROWS]]
        return {"prompt_embeds": told_NCH, "pooled": told_NCH[:, -1]}
