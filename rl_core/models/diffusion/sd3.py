"""Stable Diffusion 3 and 3.5 (arXiv 2403.03206)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import check_images
from rl_core.models.diffusion.sizes import check_sides, check_single_frame

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

TRAIN_TIMESTEPS = 1000
"""Largest noise level in the transformer's units."""


class SD3(DiffusionFamily):
    """Stable Diffusion 3: joint attention over text and image tokens; an image VAE with a shift and
    a scale."""

    name: ClassVar[str] = "sd3"
    pipelines: ClassVar[tuple[str, ...]] = ("StableDiffusion3Pipeline",)

    @property
    def lora_targets(self) -> list[str]:
        """The attention layers of both streams."""
        return [
            *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
            *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        ]

    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return `prompt_embeds` [L, D] and `pooled` [D]."""
        check_images(self.name, images, self.condition_images)
        pipeline = self.pipeline
        embeds_BLD, _, pooled_BD, _ = pipeline.encode_prompt(
            list(prompts),
            None,
            None,
            # Guidance is the engine's, which encodes the negative prompt by itself.
            do_classifier_free_guidance=False,
            # As many tokens of the third encoder as of the others, 77 + 77, is what SD3 was trained
            # with (app. B.3).
            max_sequence_length=pipeline.tokenizer_max_length,
            device=self.device,
        )
        conditions: list[Condition] = []
        for embeds, pooled in zip(embeds_BLD, pooled_BD, strict=True):
            conditions.append(Condition({"prompt_embeds": embeds, "pooled": pooled}))
        return conditions

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """Return [C, H, W]."""
        factor, config = self.pipeline.vae_scale_factor, self.config
        check_single_frame(self.name, size)
        check_sides(self.name, size, factor * config.patch_size)
        return config.in_channels, size.height // factor, size.width // factor

    def velocity(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the transformer's output, which is eps - x_0."""
        return transformer(
            hidden_states=latents,
            timestep=sigma_B * TRAIN_TIMESTEPS,
            encoder_hidden_states=conditions["prompt_embeds"],
            pooled_projections=conditions["pooled"],
            return_dict=False,
        )[0]

    def decode(self, latents: Tensor) -> Tensor:
        """Return images [B, 3, height, width]."""
        vae = self.pipeline.vae
        scaled = latents.to(vae.dtype) / vae.config.scaling_factor + vae.config.shift_factor
        return (vae.decode(scaled, return_dict=False)[0].float() / 2 + 0.5).clamp(0, 1)

    def latents_of(self, pixels: Tensor) -> Tensor:
        """Return [B, C, H, W], the mode of the VAE's posterior."""
        vae = self.pipeline.vae
        scaled = pixels.to(vae.device, vae.dtype) * 2 - 1
        encoded = vae.encode(scaled, return_dict=False)[0].mode().float()
        return (encoded - vae.config.shift_factor) * vae.config.scaling_factor
