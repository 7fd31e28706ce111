"""Wan 2.1 and 2.2, text- and image-to-video (arXiv 2503.20314)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import ConditionImages, check_images, fitted
from rl_core.models.diffusion.latents import unstandardised
from rl_core.models.diffusion.sizes import check_frames, check_sides

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from PIL.Image import Image
    from torch import Tensor, nn

TRAIN_TIMESTEPS = 1000
"""Largest noise level in the transformer's units."""
TEXT_TOKENS = 512
"""Length to which prompts are padded with zeros, which the cross-attention sees; image-to-video
relies on it."""

SECOND_ADAPTERS = "pytorch_lora_weights_2.safetensors"
"""File of the adapters of the low-noise expert."""


class Wan(DiffusionFamily):
    """Wan: cross-attention to the prompt; a three-dimensional causal VAE, whose first frame is
    separate.

    Image-to-video comes in two forms. In most models further latent channels hold the first frame
    and mark the given frames, and in 2.1 the attention also reads CLIP's embedding of it. In 2.2's
    small model (`expand_timesteps`) the first latent frame is the given one, at noise level 0: the
    velocity there is the one that leads from the sample straight to it, whatever the transformer
    predicts.

    Wan 2.2's two experts, for high and low noise, are trained as one module
    (`rl_core.models.diffusion.experts`).
    """

    name: ClassVar[str] = "wan"
    pipelines: ClassVar[tuple[str, ...]] = ("WanPipeline", "WanImageToVideoPipeline")
    makes_video: ClassVar[bool] = True

    def __init__(self, pipeline: DiffusionPipeline) -> None:
        super().__init__(pipeline)
        self._transformer = pipeline.transformer
        if pipeline.transformer_2 is not None:
            from rl_core.models.diffusion.experts import Experts

            boundary = self.pipeline.config.boundary_ratio * TRAIN_TIMESTEPS
            self._transformer = Experts(pipeline.transformer, pipeline.transformer_2, boundary)

    @property
    def lora_targets(self) -> list[str]:
        """The attention layers to the video and to the prompt, and to the image in 2.1."""
        blocks = []
        for which in (1, 2):
            for layer in ("to_q", "to_k", "to_v", "to_out.0"):
                blocks.append(f"attn{which}.{layer}")
        sees = self.config.added_kv_proj_dim is not None
        return [*blocks, *(["attn2.add_k_proj", "attn2.add_v_proj"] if sees else [])]

    @property
    def transformer(self) -> nn.Module:
        """The transformer, or both experts."""
        return self._transformer

    @property
    def condition_images(self) -> ConditionImages:
        """Required or none, depending on the pipeline."""
        animates = type(self.pipeline).__name__ == "WanImageToVideoPipeline"
        if animates:
            return ConditionImages.REQUIRED
        return ConditionImages.NONE

    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return `prompt_embeds` [L, D] and, for a condition image, `first_frame` and in 2.1
        `image_embeds` [L', D'].

        `first_frame` is [C', F, H, W], the further channels, or with `expand_timesteps` the frame
        itself, [C, 1, H, W].
        """
        check_images(self.name, images, self.condition_images)
        embeds_BLD, _ = self.pipeline.encode_prompt(
            list(prompts),
            do_classifier_free_guidance=False,
            max_sequence_length=TEXT_TOKENS,
            device=self.device,
        )
        conditions = []
        for embeds_LD, image in zip(embeds_BLD, images, strict=True):
            picture = {} if image is None else self._encode_image(image, size)
            conditions.append(Condition({"prompt_embeds": embeds_LD, **picture}))
        return conditions

    def _encode_image(self, image: Image, size: Size) -> dict[str, Tensor]:
        import torch

        pipeline = self.pipeline
        pixels = pipeline.video_processor.preprocess(fitted(image, size.width, size.height)).to(
            self.device
        )
        unused = torch.zeros(1, device=self.device)
        encoded = {
            "first_frame": pipeline.prepare_latents(
                pixels,
                batch_size=1,
                num_channels_latents=pipeline.vae.config.z_dim,
                height=size.height,
                width=size.width,
                num_frames=size.num_frames,
                dtype=torch.float32,
                device=self.device,
                latents=unused,
            )[1][0]
        }
        if self.config.image_dim is not None:
            encoded["image_embeds"] = pipeline.encode_image(image, self.device)[0]
        return encoded

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """Return [C, F, H, W]."""
        sides, frames = (
            self.pipeline.vae_scale_factor_spatial,
            self.pipeline.vae_scale_factor_temporal,
        )
        check_frames(self.name, size, frames)
        check_sides(self.name, size, sides * self.token_side)
        return (
            self.pipeline.vae.config.z_dim,
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
        import torch

        first_frame = conditions.get("first_frame")
        if first_frame is not None and self.pipeline.config.expand_timesteps:
            return self._onwards(transformer, latents, sigma_B, first_frame, conditions)
        inputs = latents if first_frame is None else torch.cat([latents, first_frame], dim=1)
        return self._predicted(transformer, inputs, sigma_B * TRAIN_TIMESTEPS, conditions)

    def _onwards(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        first_frame: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the velocity with a given first latent frame, [B, C, F, H, W]."""
        import torch

        batch, _, frames, height, width = latents.shape
        level_BF = (sigma_B * TRAIN_TIMESTEPS).unsqueeze(1).repeat(1, frames)
        level_BF[:, 0] = 0
        timesteps = level_BF.repeat_interleave(height * width // self.token_side**2, dim=1)
        inputs = torch.cat([first_frame.to(latents), latents[:, :, 1:]], dim=2)
        predicted = self._predicted(transformer, inputs, timesteps, conditions)
        straight = (latents[:, :, :1] - first_frame) / sigma_B.view(batch, 1, 1, 1, 1)
        return torch.cat([straight, predicted[:, :, 1:].to(straight)], dim=2)

    def _predicted(
        self,
        transformer: nn.Module,
        inputs: Tensor,
        timesteps: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        if "image_embeds" in conditions:
            seen = {"encoder_hidden_states_image": conditions["image_embeds"]}
        else:
            seen = {}
        return transformer(
            hidden_states=inputs,
            timestep=timesteps,
            encoder_hidden_states=conditions["prompt_embeds"],
            return_dict=False,
            **seen,
        )[0]

    def save_adapters(
        self, state: Mapping[str, Tensor], config: Mapping[str, object], folder: Path
    ) -> None:
        """Write adapters like every family; the second of two experts has its own file,
        `SECOND_ADAPTERS`.

        It is read by `load_lora_weights(folder, weight_name=SECOND_ADAPTERS,
        load_into_transformer_2=True)`.
        """
        if self._transformer is self.pipeline.transformer:
            super().save_adapters(state, config, folder)
            return
        for expert, file in (("transformer", None), ("transformer_2", SECOND_ADAPTERS)):
            prefix = f"{expert}."
            own = {}
            for name, value in state.items():
                if name.startswith(prefix):
                    own[name.removeprefix(prefix)] = value
            type(self.pipeline).save_lora_weights(
                str(folder),
                transformer_lora_layers=own,
                transformer_lora_adapter_metadata=dict(config),
                weight_name=file,
            )

    def load_adapters(self, folder: Path) -> None:
        """Load adapters like every family; those of a second expert from their own file."""
        super().load_adapters(folder)
        if self._transformer is not self.pipeline.transformer:
            self.pipeline.load_lora_weights(
                str(folder), weight_name=SECOND_ADAPTERS, load_into_transformer_2=True
            )

    def decode(self, latents: Tensor) -> Tensor:
        """Return videos [B, frames, 3, height, width]."""
        vae = self.pipeline.vae
        video = vae.decode(unstandardised(latents, vae.config).to(vae.dtype), return_dict=False)[0]
        return (video.float().transpose(1, 2) / 2 + 0.5).clamp(0, 1)
