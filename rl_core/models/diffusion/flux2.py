"""FLUX.2 and FLUX.2 klein (Black Forest Labs, https://bfl.ai/blog/flux-2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import ConditionImages, check_images, fitted
from rl_core.models.diffusion.sizes import check_sides, check_single_frame

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn


class Flux2(DiffusionFamily):
    """FLUX.2: a latent is the transformer's input: 2 x 2 patches of the VAE's latent, normalised
    channel by channel.

    Prompts are padded to one length without a mask. A condition image joins the tokens as a second,
    clean image. FLUX.2 reads the guidance scale; klein is guided by two forwards, and its distilled
    versions not at all (scale 1).
    """

    name: ClassVar[str] = "flux2"
    pipelines: ClassVar[tuple[str, ...]] = ("Flux2KleinPipeline", "Flux2Pipeline")
    token_side: ClassVar[int] = 1

    @property
    def lora_targets(self) -> list[str]:
        """The attention layers."""
        # `to_out` of the single-stream blocks is left out: peft matches ends of names, and in the
        # others it is a list.
        return [
            *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.to_qkv_mlp_proj"),
            *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        ]

    @property
    def condition_images(self) -> ConditionImages:
        """Optional, since the same model edits an image with one more input."""
        return ConditionImages.OPTIONAL

    @property
    def embedded_guidance(self) -> bool:
        """True for FLUX.2 by the transformer's config; klein has no embedded guidance."""
        return bool(self.config.guidance_embeds)

    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return `prompt_embeds` [L, D] and, for a condition image, `image_latents` [C, H, W]."""
        check_images(self.name, images, self.condition_images)
        embeds_BLD, _ = self.pipeline.encode_prompt(list(prompts), device=self.device)
        conditions = []
        for embeds_LD, image in zip(embeds_BLD, images, strict=True):
            picture = {} if image is None else {"image_latents": self._encode_image(image, size)}
            conditions.append(Condition({"prompt_embeds": embeds_LD, **picture}))
        return conditions

    def _encode_image(self, image: Image, size: Size) -> Tensor:
        # Here and below: what the pipeline's `__call__` does between its public parts has private
        # names only; they can go when diffusers opens them.
        pipeline = self.pipeline
        pixels = pipeline.image_processor.preprocess(fitted(image, size.width, size.height))
        return pipeline._encode_vae_image(
            pixels.to(self.device, pipeline.vae.dtype), generator=None
        )[0]

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """Return [C, H, W], where C counts the four pixels of a patch."""
        multiple = self.pipeline.vae_scale_factor * 2
        check_single_frame(self.name, size)
        check_sides(self.name, size, multiple)
        return self.config.in_channels, size.height // multiple, size.width // multiple

    def velocity(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the transformer's output for the noisy image's tokens, which is eps - x_0."""
        import torch

        pipeline = self.pipeline
        tokens, places = _tokens(latents), pipeline._prepare_latent_ids(latents[:1])
        num_tokens = tokens.shape[1]
        if (reference := conditions.get("image_latents")) is not None:
            tokens = torch.cat([tokens, _tokens(reference)], dim=1)
            places = torch.cat([places, pipeline._prepare_image_ids([reference[:1]])], dim=1)
        embeds_BLD = conditions["prompt_embeds"]
        predicted = transformer(
            hidden_states=tokens,
            timestep=sigma_B,
            guidance=conditions.get("guidance"),
            encoder_hidden_states=embeds_BLD,
            txt_ids=pipeline._prepare_text_ids(embeds_BLD[:1]).to(latents.device),
            img_ids=places.to(latents.device),
            return_dict=False,
        )[0]
        return predicted[:, :num_tokens].transpose(1, 2).reshape_as(latents)

    def decode(self, latents: Tensor) -> Tensor:
        """Return images [B, 3, height, width]."""
        import torch

        vae = self.pipeline.vae
        mean, variance = (
            value.view(1, -1, 1, 1).to(latents)
            for value in (vae.bn.running_mean, vae.bn.running_var)
        )
        scaled = latents * (variance + vae.config.batch_norm_eps).sqrt() + mean
        patches = torch.nn.functional.pixel_shuffle(scaled, 2).to(vae.dtype)
        return (vae.decode(patches, return_dict=False)[0].float() / 2 + 0.5).clamp(0, 1)

    def shift(self, size: Size, num_steps: int = 50) -> float:
        """Return the authors' fit to the number of tokens and of steps."""
        from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu

        if not self.pipeline.scheduler.config.get("use_dynamic_shifting"):
            return super().shift(size, num_steps)
        return math.exp(compute_empirical_mu(self.num_tokens(size), num_steps))


def _tokens(latents: Tensor) -> Tensor:
    """Return [B, C, H, W] as [B, H W, C]."""
    return latents.flatten(2).transpose(1, 2)
