"""HunyuanVideo (arXiv 2412.03603)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import check_images
from rl_core.models.diffusion.sizes import check_frames, check_sides

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

TRAIN_TIMESTEPS = 1000
"""Largest noise level in the transformer's units, and factor of its guidance scales."""


class HunyuanVideo(DiffusionFamily):
    """HunyuanVideo: video and text tokens, first in two streams, then in one; prompts are padded to
    one length and masked.

    The transformer reads the guidance scale.
    """

    name: ClassVar[str] = "hunyuan_video"
    pipelines: ClassVar[tuple[str, ...]] = ("HunyuanVideoPipeline",)
    makes_video: ClassVar[bool] = True

    @property
    def lora_targets(self) -> list[str]:
        """The attention layers."""
        return [
            *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
            *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        ]

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the repeated blocks; the class also lists its embeddings as such."""
        return "HunyuanVideoTransformerBlock", "HunyuanVideoSingleTransformerBlock"

    @property
    def embedded_guidance(self) -> bool:
        """True by the transformer's config."""
        return bool(self.config.guidance_embeds)

    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return `prompt_embeds` [L, D], `prompt_mask` [L] and `pooled` [P]."""
        check_images(self.name, images, self.condition_images)
        embeds_BLD, pooled_BP, mask_BL = self.pipeline.encode_prompt(
            list(prompts), device=self.device
        )
        conditions: list[Condition] = []
        for embeds, mask, pooled in zip(embeds_BLD, mask_BL.bool(), pooled_BP, strict=True):
            conditions.append(
                Condition({"prompt_embeds": embeds, "prompt_mask": mask, "pooled": pooled})
            )
        return conditions

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """Return [C, F, H, W]."""
        sides, frames = (
            self.pipeline.vae_scale_factor_spatial,
            self.pipeline.vae_scale_factor_temporal,
        )
        check_frames(self.name, size, frames)
        check_sides(self.name, size, sides * self.config.patch_size)
        return (
            self.config.in_channels,
            (size.num_frames - 1) // frames + 1,
            size.height // sides,
            size.width // sides,
        )

    def velocity(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the transformer's output, which is eps - x_0."""
        if self.embedded_guidance:
            guidance = {"guidance": conditions["guidance"] * TRAIN_TIMESTEPS}
        else:
            guidance = {}
        return transformer(
            hidden_states=latents,
            timestep=sigma_B * TRAIN_TIMESTEPS,
            encoder_hidden_states=conditions["prompt_embeds"],
            encoder_attention_mask=conditions["prompt_mask"],
            pooled_projections=conditions["pooled"],
            return_dict=False,
            **guidance,
        )[0]

    def decode(self, latents: Tensor) -> Tensor:
        """Return videos [B, frames, 3, height, width]."""
        vae = self.pipeline.vae
        video = vae.decode(latents.to(vae.dtype) / vae.config.scaling_factor, return_dict=False)[0]
        return (video.float().transpose(1, 2) / 2 + 0.5).clamp(0, 1)
