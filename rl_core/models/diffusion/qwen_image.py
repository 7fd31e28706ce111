"""Qwen-Image and Qwen-Image-Edit (arXiv 2508.02324)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import ConditionImages, check_images, fitted
from rl_core.models.diffusion.latents import packed, standardised, unpacked, unstandardised
from rl_core.models.diffusion.sizes import check_sides, check_single_frame

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn


class QwenImage(DiffusionFamily):
    """Qwen-Image: tokens are 2 x 2 patches of the latent; prompts keep their own length and are
    masked.

    Its VAE is a video VAE, used with one frame. Guided velocities are scaled back, token by token,
    to the length of the unguided ones. For editing, the vision-language encoder reads the condition
    image and its latent joins the tokens.
    """

    name: ClassVar[str] = "qwen_image"
    pipelines: ClassVar[tuple[str, ...]] = ("QwenImagePipeline", "QwenImageEditPipeline")
    padded: ClassVar[tuple[str, ...]] = ("prompt_embeds",)
    reference_pixels: int = 1024 * 1024
    """Approximate number of pixels to which a condition image is scaled, in the aspect ratio of the
    sample."""

    @property
    def lora_targets(self) -> list[str]:
        """The attention layers of both streams."""
        return [
            *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
            *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        ]

    @property
    def condition_images(self) -> ConditionImages:
        """Required or none, depending on the pipeline."""
        edits = type(self.pipeline).__name__ == "QwenImageEditPipeline"
        if edits:
            return ConditionImages.REQUIRED
        return ConditionImages.NONE

    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return `prompt_embeds` [L, D] and, for a condition image, `image_latents` [C, H, W]."""
        check_images(self.name, images, self.condition_images)
        width, height = self._reference_size(size)
        references = []
        for image in images:
            if image is not None:
                references.append(fitted(image, width, height))
        read: dict[str, list[Image]] = {"image": references} if references else {}
        embeds_BLD, mask_BL = self.pipeline.encode_prompt(
            prompt=list(prompts), device=self.device, **read
        )
        conditions = []
        for row, embeds_LD in enumerate(embeds_BLD):
            text = embeds_LD if mask_BL is None else embeds_LD[: int(mask_BL[row].sum())]
            picture = {"image_latents": self._encode_image(references[row])} if references else {}
            conditions.append(Condition({"prompt_embeds": text, **picture}))
        return conditions

    def _reference_size(self, size: Size) -> tuple[int, int]:
        from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit import calculate_dimensions

        width, height, _ = calculate_dimensions(self.reference_pixels, size.width / size.height)
        return width, height

    def _encode_image(self, image: Image) -> Tensor:
        vae = self.pipeline.vae
        pixels = (
            self.pipeline.image_processor.preprocess(image).unsqueeze(2).to(self.device, vae.dtype)
        )
        return standardised(vae.encode(pixels).latent_dist.mode(), vae.config)[0, :, 0]

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """Return [C, H, W]."""
        factor = self.pipeline.vae_scale_factor
        check_single_frame(self.name, size)
        check_sides(self.name, size, factor * self.token_side)
        return (
            self.config.in_channels // self.token_side**2,
            size.height // factor,
            size.width // factor,
        )

    def velocity(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the transformer's output for the noisy image's tokens, which is eps - x_0."""
        import torch

        pictures = [
            latents,
            *([conditions["image_latents"]] if "image_latents" in conditions else []),
        ]
        tokens = [packed(picture) for picture in pictures]
        shapes = []
        for picture in pictures:
            shapes.append((1, picture.shape[-2] // 2, picture.shape[-1] // 2))
        predicted = transformer(
            hidden_states=torch.cat(tokens, dim=1),
            timestep=sigma_B,
            encoder_hidden_states=conditions["prompt_embeds"],
            encoder_hidden_states_mask=conditions["prompt_embeds_mask"],
            img_shapes=[shapes] * len(latents),
            return_dict=False,
        )[0]
        return unpacked(predicted[:, : tokens[0].shape[1]], latents.shape)

    def guide(self, positive: Tensor, negative: Tensor, scale: float) -> Tensor:
        """Return the guided velocity with each token's length as with the prompt alone."""
        guided, told = packed(super().guide(positive, negative, scale)), packed(positive)
        return unpacked(
            guided * told.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True),
            positive.shape,
        )

    def decode(self, latents: Tensor) -> Tensor:
        """Return images [B, 3, height, width]."""
        vae = self.pipeline.vae
        frames = unstandardised(latents.unsqueeze(2), vae.config).to(vae.dtype)
        return (vae.decode(frames, return_dict=False)[0][:, :, 0].float() / 2 + 0.5).clamp(0, 1)
