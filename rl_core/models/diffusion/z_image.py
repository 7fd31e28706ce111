"""Z-Image and Z-Image-Turbo (arXiv 2511.22699)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import check_images
from rl_core.models.diffusion.sizes import check_sides, check_single_frame

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn


class ZImage(DiffusionFamily):
    """Z-Image: one stream of text and image tokens. Its time runs from noise (0) to image (1), so
    its output is x_0 - eps.

    The transformer takes lists, one entry per sample, and masks its padding. The pipeline counts
    guidance from 0: its `guidance_scale` is the scale here minus 1. Turbo is distilled and needs
    scale 1.
    """

    name: ClassVar[str] = "z_image"
    pipelines: ClassVar[tuple[str, ...]] = ("ZImagePipeline",)
    padded: ClassVar[tuple[str, ...]] = ("prompt_embeds",)

    @property
    def lora_targets(self) -> list[str]:
        """The attention layers."""
        return ["attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0"]

    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return `prompt_embeds` [L, D]."""
        check_images(self.name, images, self.condition_images)
        embeds, _ = self.pipeline.encode_prompt(
            list(prompts), device=self.device, do_classifier_free_guidance=False
        )
        return [Condition({"prompt_embeds": embeds_LD}) for embeds_LD in embeds]

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """Return [C, H, W]."""
        factor = self.pipeline.vae_scale_factor
        check_single_frame(self.name, size)
        check_sides(self.name, size, factor * self.token_side)
        return self.config.in_channels, size.height // factor, size.width // factor

    def velocity(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the transformer's output with its sign reversed."""
        import torch

        lengths = conditions["prompt_embeds_mask"].sum(dim=1).tolist()
        texts = []
        for row, length in zip(conditions["prompt_embeds"], lengths, strict=True):
            texts.append(row[:length])
        predicted = transformer(list(latents.unsqueeze(2)), 1 - sigma_B, texts, return_dict=False)[
            0
        ]
        return -torch.stack(predicted).squeeze(2)

    def decode(self, latents: Tensor) -> Tensor:
        """Return images [B, 3, height, width]."""
        vae = self.pipeline.vae
        scaled = latents.to(vae.dtype) / vae.config.scaling_factor + vae.config.shift_factor
        return (vae.decode(scaled, return_dict=False)[0].float() / 2 + 0.5).clamp(0, 1)
